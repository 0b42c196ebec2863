#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# example_test.sh SOURCE LLAMPI: what `make run` calls, shortened to three steps, twice: the second time there is nothing left to do.
set -euo pipefail
source_dir=$1
export LLAMPI=$2 LLAMPI_TRAIN_STEPS=3 LLAMPI_TRAIN_EVAL_EVERY=0 LLAMPI_OPTIMIZER_WARMUP_STEPS=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RUN_DIR=$folder/run TEXT="$source_dir/LICENSE $source_dir/README.md"

"$source_dir/scripts/run-example.sh" | tee "$folder/first"
grep -q "^step *3/3 " "$folder/first"
unigram=$(awk '/unigram model/{print $3}' "$folder/first")
model=$(awk '/this model/{print $3}' "$folder/first")
# Three steps from 5.5 nats: below the start, whatever the text.
awk -v u="$unigram" -v m="$model" 'BEGIN { exit !(u > 2 && u < 5 && m > 1 && m < 5.6) }'

"$source_dir/scripts/run-example.sh" | tee "$folder/second"
grep -q "run already complete" "$folder/second"
