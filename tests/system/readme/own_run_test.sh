#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# own_run_test.sh SOURCE LLAMPI: runs the block of commands under "Your own run" of the README, word for word, in an empty folder.
set -euo pipefail
source_dir=$1 llampi=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir build
ln -s "$llampi" build/llampi
ln -s "$source_dir/input" "$source_dir/scripts" .
head -c 40000 "$source_dir/LICENSE" >book1.txt
cat "$source_dir"/docs/*.md >book2.txt

commands=$(awk '/^## /{inside = ($0 == "## Your own run")} inside && /^    /{print substr($0, 5)}' "$source_dir/README.md")
[[ $commands == *"llampi tokenize"*"llampi train"*"llampi generate"* ]] || { echo "the README has no such block" >&2; exit 1; }
# shellcheck source=scripts/mpi-env.sh
source scripts/mpi-env.sh
echo "$commands"
eval "$commands" | tee output
grep -q "^step  *20/20 .*tokens/s" output # training reached its last step
grep -q "It was" output                   # and the sample continues the prompt
