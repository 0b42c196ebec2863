#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fault_drill.sh SOURCE LLAMPI FAULTY_IO [all | FAULT...]: calls that write, sync and rename fail, or are the last that a rank makes. The run must
# end with an error (2: the disk is full, or read-only; 1 or a signal: anything else), and the same command must then finish it.
# DRILL_OPTIONS: more options of both runs.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
steps=12
faulty_io=$3
read -ra options <<<"${DRILL_OPTIONS:-}"
prepare "$1" "$2"

train_undisturbed 2

faults=(0:write:3:ENOSPC 1:write:9:ENOSPC 0:fsync:2:EIO 1:fsync:1:EIO 0:rename:2:EROFS 0:rename:2:kill 0:rename:3:killed 1:write:7:short
    0:write:30:short 1:write:5:EIO)
if [[ ${4:-} == all ]]; then
    faults=()
    for rank in 0 1; do
        for what in ENOSPC EIO kill killed short; do
            for number in {1..40..3}; do faults+=("$rank:write:$number:$what"); done
        done
        for what in EIO kill killed; do
            for number in {1..12}; do faults+=("$rank:fsync:$number:$what"); done
        done
    done
    for what in EIO EROFS ENOSPC kill killed; do
        for number in {1..6}; do faults+=("0:rename:$number:$what"); done
    done
    least=${#faults[@]} # not all of these calls are made
elif (($# > 3)); then
    faults=("${@:4}")
fi

hit=0
for fault in "${faults[@]}"; do
    for async in false true; do
        run=run-${fault//:/-}-$async
        status=0
        FAULTY_IO=$fault LD_PRELOAD=$faulty_io start "$run" 2 --checkpoint.async=$async --checkpoint.wait_minutes=0 "${options[@]}"
        wait_for_job || status=$?
        wait_for_ranks
        case $fault:$status in
            *:0) ;; # so many calls are not made
            *:ENOSPC:2 | *:EROFS:2 | *:EIO:[12]) hit=$((hit + 1)) ;;
            *:kill:137 | *:killed:137 | *:short:137) hit=$((hit + 1)) ;;
            *:kill:1 | *:killed:1 | *:short:1) # another rank has seen it before mpirun did
                grep -q "exited without reporting an error" "$run.log" || fail "$fault ended with status 1"
                hit=$((hit + 1))
                ;;
            *) fail "$fault with checkpoint.async=$async ended with status $status" ;;
        esac
        if [[ $fault == *:E* && $status != 0 ]]; then # the program was alive to clean up
            [[ -z $(find "$run" -name '*.tmp') ]] || fail "$fault with checkpoint.async=$async left $(find "$run" -name '*.tmp')"
        fi
        start "$run" 2 --checkpoint.async=$async --checkpoint.wait_minutes=0 "${options[@]}"
        wait_for_job || fail "$fault with checkpoint.async=$async: the run does not continue"
        same_as_undisturbed "$run" || fail "$fault with checkpoint.async=$async"
        rm -rf "$run"
    done
done
((hit >= ${least:-2 * ${#faults[@]}})) || fail "only $hit of $((2 * ${#faults[@]})) faults were met"
echo "$hit faults"
