#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a fuzz target: its corpus, then what the fuzzer makes of it. An input that breaks it is kept beside the target.
#
#   run.sh TARGET [libFuzzer's options...], as run.sh build/fuzz/fuzz_chat_line -max_total_time=60
set -euo pipefail
target=$(realpath "$1")
name=$(basename "$target")
corpus=$(dirname "${BASH_SOURCE[0]}")/corpus/${name#fuzz_}
shift
found=$(mktemp -d) # the fuzzer adds to the first folder, which must not be the one in the repository
trap 'rm -rf "$found"' EXIT

# Older sanitizers do not find room for their shadow memory where the kernel places libraries too randomly.
fixed_addresses=(setarch "$(uname -m)" -R)
"${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()

# Leaks are looked for through ptrace, which containers may forbid.
ASAN_OPTIONS=detect_leaks=0 "${fixed_addresses[@]}" "$target" -timeout=60 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$target-" "$@" "$found" "$corpus"
