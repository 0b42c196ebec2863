#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# read_drill.sh SOURCE LLAMPI FAULTY_IO: a checkpoint cannot be opened or read for a moment, when a run continues. That says nothing about what is
# in it: the start ends with an error, no checkpoint is skipped, changed or deleted, and the same command then finishes the run.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
faulty_io=$3
prepare "$1" "$2"

options=(--optimizer.schedule=constant) # or the schedule would depend on the number of steps
steps=9
train_undisturbed 2 "${options[@]}"
steps=6
start half 2 "${options[@]}"
wait_for_job || fail "the first half failed"
steps=9

hit=0
for io in direct hdf5; do
    for fault in 0:stat:1 0:stat:2 0:open:1 0:open:2 0:open:3 0:read:1 0:read:4 1:open:1 1:read:1; do
        run=run-$io-${fault//:/-}
        cp -r half "$run"
        status=0
        FAULTY_IO=$fault:EIOonce LD_PRELOAD=$faulty_io start "$run" 2 "${options[@]}" --checkpoint.io=$io --checkpoint.wait_minutes=0
        wait_for_job || status=$?
        wait_for_ranks
        if grep -q "skipped a checkpoint" "$run.log"; then fail "$fault with checkpoint.io=$io: a checkpoint was skipped"; fi
        case $status in
            0) # so many calls are not made, or one of them is not needed
                grep -q "^resumed from .* at step 6$" "$run.log" || fail "$fault with checkpoint.io=$io: resumed from another checkpoint"
                ;;
            1 | 2)
                hit=$((hit + 1))
                diff -r half/checkpoints "$run/checkpoints" || fail "$fault with checkpoint.io=$io: checkpoints have changed"
                start "$run" 2 "${options[@]}" --checkpoint.io=$io
                wait_for_job || fail "$fault with checkpoint.io=$io: the run does not continue"
                ;;
            *) fail "$fault with checkpoint.io=$io ended with status $status" ;;
        esac
        same_as_undisturbed "$run" || fail "$fault with checkpoint.io=$io"
        rm -rf "$run"
    done
done

# Each read of what a file says of itself: whichever fails once, nothing is said to be damaged or missing.
inspect_unreadable() { # FILE CALL READS LEAST
    local file=$1 call=$2 number status said expected refused=0
    expected=$("$llampi" inspect "$file")
    for ((number = 1; number <= $3; number++)); do
        status=0
        said=$(OMPI_COMM_WORLD_RANK=0 FAULTY_IO=0:$call:$number:EIOonce LD_PRELOAD=$faulty_io "$llampi" inspect "$file" 2>&1) || status=$?
        case $status in
            0) [[ $said == "$expected" ]] || fail "$file, read $number fails: inspect prints $said" ;;
            1)
                [[ $said == *"$file"*"Input/output error"* ]] || fail "$file, read $number fails: $said"
                refused=$((refused + 1))
                ;;
            *) fail "$file, read $number fails: status $status, $said" ;;
        esac
    done
    ((refused >= $4)) || fail "$file: only $refused reads were refused"
}
inspect_unreadable half/checkpoints/step-00000006.h5 read 40 8
inspect_unreadable train.h5 data 30 5

# The data, in the middle of a run: a fault of the system, which job scripts try again.
run=data
status=0
FAULTY_IO=0:data:60:EIO LD_PRELOAD=$faulty_io start $run 2 "${options[@]}" --checkpoint.every=3
wait_for_job || status=$?
wait_for_ranks
((status == 1)) || fail "data that cannot be read ended with status $status"
grep -qE "^llampi: rank 0 on .*train.h5.*; the newest checkpoint is of step [0-9]+$" $run.log || fail "it is not said what could not be read"
start $run 2 "${options[@]}"
wait_for_job || fail "the run does not continue"
same_as_undisturbed $run || fail "data that could not be read"
((hit >= 8)) || fail "only $hit of 18 faults were met"
echo "$hit faults"
