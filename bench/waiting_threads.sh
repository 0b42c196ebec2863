#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# waiting_threads.sh STEP_BENCH [PAIRS [THREADS]]: tokens per second of step_bench (a) with OpenMP threads that wait as GNU's library has them by
# itself, and as llampi has them, in turn; first alone, then beside a program that keeps one core busy. Prints each pair and the medians.
set -euo pipefail
bench=$1 pairs=${2:-5} threads=${3:-2}
folder=$(mktemp -d)
busy=
trap '[[ -z $busy ]] || kill "$busy"; rm -rf "$folder"' EXIT
unset OMP_WAIT_POLICY GOMP_SPINCOUNT

speed() {
    "$@" "$bench" a "$threads" 5 | sed -E 's/.*: ([0-9]+) tokens.*/\1/'
}
median() {
    sort -n "$1" | sed -n "$(((pairs + 1) / 2))p"
}

for beside in alone "beside a busy program"; do
    if [[ $beside != alone ]]; then
        while :; do :; done &
        busy=$!
    fi
    rm -f "$folder"/*
    for ((pair = 1; pair <= pairs; ++pair)); do
        library=$(speed env) llampi=$(speed env OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=1000)
        echo "$library" >>"$folder/library"
        echo "$llampi" >>"$folder/llampi"
        awk "BEGIN { printf \"%.3f\n\", $llampi / $library }" >>"$folder/ratio"
        echo "$beside: $library tokens/s as the library waits, $llampi as llampi does"
    done
    echo "$beside, medians: $(median "$folder/library") and $(median "$folder/llampi") tokens/s, ratio $(median "$folder/ratio")"
done
