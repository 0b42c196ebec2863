#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# thread_drill.sh SOURCE LLAMPI NO_THREADS: where the system has no more threads to give, as with a limit of processes, a run that has
# begun goes on to its end: what reads ahead or saves in the background is done in between.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
steps=12
prepare "$1" "$2"

train_undisturbed 2
for async in false true; do
    run=run-$async
    NO_THREADS_AFTER=$run/checkpoints/step-00000003.h5 LD_PRELOAD=$3 start "$run" 2 --checkpoint.async=$async
    wait_for_job || fail "$run did not end well"
    same_as_undisturbed "$run" || fail "$run"
    [[ $(grep -c '^saved ' "$run.log") == 4 ]] || fail "$run saved $(grep '^saved ' "$run.log")"
done

# A watchdog without a thread: a sentence of the rank, and none that contradicts it.
for ((number = 1; number <= 8; ++number)); do
    run=unwatched-$number
    NO_THREAD_AT=$number LD_PRELOAD=$3 start $run 2
    if wait_for_job || ! grep -q "the watchdog cannot start its thread: Resource temporarily unavailable" $run.log; then continue; fi
    ! grep -q "exited without reporting an error" $run.log || fail "$run: a second report"
    echo "no threads"
    exit
done
fail "no watchdog was without a thread"
