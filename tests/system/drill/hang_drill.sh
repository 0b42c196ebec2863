#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# hang_drill.sh SOURCE LLAMPI FAULTY_IO: a write of rank 1 that never comes back, in a save that training waits for and in one beside
# training. The watchdog must end the run, as late as it does in a save (600 s), say where the ranks are,
# and lose no checkpoint.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
steps=12
faulty_io=$3
prepare "$1" "$2"

train_undisturbed 2

declare -A jobs
for async in false true; do
    FAULTY_IO=1:fsync:2:hang LD_PRELOAD=$faulty_io start "async-$async" 2 --checkpoint.async=$async --run.watchdog_seconds=5
    jobs[$async]=$job
done
for async in false true; do
    run=async-$async
    status=0
    wait "${jobs[$async]}" || status=$?
    ((status != 0)) || fail "a write that hangs was not noticed"
    report='watchdog: no progress for 6.*; rank 1 on [^ ]+ is behind'
    [[ $async == false ]] || report='watchdog: rank 1 on [^ ]+ is stuck while saving a checkpoint in the background: no progress for 6'
    grep -qE "$report" "$run.log" || fail "the watchdog does not name rank 1"
    [[ $async == true ]] || grep -q 'saves a checkpoint' "$run.log" || fail "the watchdog does not say that the run saves a checkpoint"
    wait_for_ranks
    start $run 2
    wait "$job" || fail "the run does not continue"
    same_as_undisturbed $run || fail "after a write that hung"
done
