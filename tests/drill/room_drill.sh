#!/usr/bin/env bash
# room_drill.sh SOURCE LLAMPI FAULTY_IO: runs on a disk whose free bytes the file `free` tells: refused at the start, warned, a last save that
# goes elsewhere, and one that waits until there is room.
set -euo pipefail
# shellcheck source=tests/drill/drill.sh
source "$1/tests/drill/drill.sh"
steps=12
faulty_io=$3
prepare "$1" "$2"

# run STATUS PATTERN [OPTION...]: the run $run must end with this status, and its log, of this start alone, have a line like the pattern
expect() {
    local wanted=$1 pattern=$2 status=0
    shift 2
    rm -f "$run.log"
    FREE_BYTES=$folder/free LD_PRELOAD=$faulty_io start "$run" 2 "$@"
    wait_for_job || status=$?
    ((status == wanted)) || fail "$run ended with status $status, not $wanted"
    grep -qE "$pattern" "$run.log" || fail "the log of $run does not say: $pattern"
}

run=undisturbed
start $run 2
wait_for_job || fail "the undisturbed run failed"
plenty=1000000000

run=refused
mkdir $run
echo "$run 1000" >free
expect 2 "^llampi: there is no room for a checkpoint of this model: it needs [0-9.]+ KiB, and 1000 B are free in refused/checkpoints"
[[ -z $(ls -A refused) ]] || fail "a run that is refused at the start leaves something"
estimate=$(sed -nE 's/.*it needs ([0-9]+)\.[0-9]+ KiB.*/\1/p' refused.log)
estimate=$(((estimate + 1) * 1024))

run=warned # room for one file and a part of the next; this disk does not fill up
mkdir $run
echo "$run $((estimate * 3 / 2))" >free
expect 0 "^warning: there is no room for all checkpoints of this run: .* 3 new ones of .*; make room there"
same_as_undisturbed $run || fail "a run that was warned"

# The disk is full from step 9 on: its save begins the wait, and ends it.
steps=60
run=waits
echo "$run $plenty" >free
(
    until [[ -e waits/checkpoints/step-00000006.h5 ]]; do sleep 0.01; done
    echo "waits 1000" >free
    until grep -q "The state stays in memory" waits.log; do sleep 0.05; done
    echo "waits $plenty" >free
) &
helper=$!
expect 0 "cannot write the checkpoint .*: it needs .*, and 1000 B are free; .*waiting up to 1h 00m"
wait $helper
[[ -e waits/checkpoints/step-00000060.h5 ]] || fail "it waited in vain"

# Likewise, with a second place; there the same command continues.
run=moves
echo "$run $plenty" >free
(
    until [[ -e moves/checkpoints/step-00000006.h5 ]]; do sleep 0.01; done
    printf '%s\n' "elsewhere $plenty" "moves 1000" >free
) &
helper=$!
expect 0 "is in checkpoint.fallback_dir: elsewhere/.*/moves/checkpoints/step-00000060.h5; make room" \
    --checkpoint.fallback_dir=elsewhere
wait $helper
[[ ! -e moves/checkpoints/step-00000060.h5 ]] || fail "run.dir had room"
[[ $(find elsewhere -name 'step-*' | wc -l) == 1 ]] || fail "more than one checkpoint is elsewhere"
echo "moves $plenty" >free
steps=66
expect 0 "resumed from elsewhere/.*step-00000060.h5 at step 60" --checkpoint.fallback_dir=elsewhere
[[ -e moves/checkpoints/step-00000066.h5 ]] || fail "the run did not go on"

# Given up: status 2, and older checkpoints as they were.
steps=60
run=gives-up
echo "$run $plenty" >free
(
    until [[ -e gives-up/checkpoints/step-00000006.h5 ]]; do sleep 0.01; done
    echo "gives-up 1000" >free
) &
helper=$!
expect 2 "^llampi: .*cannot write the checkpoint gives-up/checkpoints/" --checkpoint.wait_minutes=0
wait $helper
[[ $(find gives-up/checkpoints -type f | wc -l) == 2 ]] || fail "left are $(ls gives-up/checkpoints)"
