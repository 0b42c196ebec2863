#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# verdicts_test.sh SOURCE: what bench/plan_accuracy.sh and bench/tune_check.sh print and return for measurements that are given: one that just keeps a
# bound, and one that just misses it. Nothing is measured.
set -euo pipefail
source_dir=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
    echo "$*" >&2
    exit 1
}
# expect SCRIPT STATUS LINE...: what it does with $folder/results
expect() {
    local script=$1 wanted=$2 status=0 output
    shift 2
    output=$(bash "$source_dir/bench/$script" none "$folder" 0) || status=$?
    ((status == wanted)) || fail "$script ends with $status instead of $wanted: $output"
    for line in "$@"; do
        grep -qxF -- "$line" <<<"$output" || fail "$script does not print \"$line\": $output"
    done
}

# The fastest of two measurements counts, and the shorter prediction. Errors of +14.9 and -14.9 %, then of +15.2 %.
printf '%s\n' '1,1,small 0.2 0.1149' '1,1,small 0.1 0.1249' '2,1,wide 0.1 0.0851' >"$folder/results"
expect plan_accuracy.sh 0 '| 1 1 small | 100.0 | 114.9 | +14.9 % | good |' '| 2 1 wide | 100.0 | 85.1 | -14.9 % | good |' '2 of 2 within 15 %: good'
printf '%s\n' '1,1,small 0.1 0.1152' '2,1,wide 0.1 0.1' >"$folder/results"
expect plan_accuracy.sh 1 '| 1 1 small | 100.0 | 115.2 | +15.2 % | BAD |' '| 2 1 wide | 100.0 | 100.0 | +0.0 % | good |' '1 of 2 within 15 %: BAD'
printf '%s\n' '1,1,small 0.1 0.0848' >"$folder/results"
expect plan_accuracy.sh 1 '0 of 1 within 15 %: BAD'
: >"$folder/results"
expect plan_accuracy.sh 1 '0 of 0 within 15 %: BAD'

printf '%s\n' 'tuned 0.1049 0.1' '--a,--b 0.1 0.1' '--c 0.3 0.3' >"$folder/results"
expect tune_check.sh 0 '| --a --b | 100.0 | 100.0 | +4.9 % | good |' '| tuned | 104.9 | 100.0 | +0.0 % | good |' \
    'the step of plan --tune takes 104.9 ms, the fastest of 2 others 100.0 ms (+4.9 %): good'
printf '%s\n' 'tuned 0.1052 0.1' '--a,--b 0.1 0.1' '--c 0.3 0.3' >"$folder/results"
expect tune_check.sh 1 '| --a --b | 100.0 | 100.0 | +5.2 % | BAD |' '| --c | 300.0 | 300.0 | -64.9 % | good |' \
    'the step of plan --tune takes 105.2 ms, the fastest of 2 others 100.0 ms (+5.2 %): BAD'
printf '%s\n' '--a,--b 0.1 0.1' '--c 0.3 0.3' >"$folder/results"
expect tune_check.sh 1
: >"$folder/results"
expect tune_check.sh 1
echo "verdicts: bounds that are missed are found"
