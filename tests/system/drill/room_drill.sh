#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# room_drill.sh SOURCE LLAMPI FAULTY_IO: runs on a disk whose free bytes the file `free` tells: refused at the start, warned, a last save that
# goes elsewhere, and one that waits until there is room.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
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

train_undisturbed 2
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

# No room once the second checkpoint is there: the save of step 9 is the first without any.
full_from_9() { printf '%s\n' "$@" "$run 1000 $run/checkpoints/step-00000006.h5" "$run $plenty" >free; }

# That save begins the wait, and what it says ends it.
run=waits
full_from_9
(
    for ((i = 0; i < 1200; ++i)); do
        if grep -q "The state stays in memory" waits.log; then break; fi
        sleep 0.05
    done
    echo "waits $plenty" >free
) 2>/dev/null &
helper=$!
expect 0 "cannot write the checkpoint .*: it needs .*, and 1000 B are free; .*waiting up to 1h 00m"
wait $helper
same_as_undisturbed waits || fail "a run that waited"

# Told to stop meanwhile, by the file or by a signal of which mpirun tells all ranks: it says what ended the wait.
for way in file signal; do
    run=told-by-$way
    full_from_9
    (
        for ((i = 0; i < 1200; ++i)); do
            if grep -q "The state stays in memory" "$run.log"; then break; fi
            sleep 0.05
        done
        if [[ $way == file ]]; then touch "$run/stop"; else pkill -USR1 -f "^mpirun .*run\.dir=$run " || pkill -USR1 -f "run\.dir=$run "; fi
    ) 2>/dev/null &
    helper=$!
    expect 2 "^warning: the wait for room ends without a checkpoint of step 9: the run was told to stop$"
    wait $helper
    echo "$run $plenty" >free
    expect 0 "resumed from $run/checkpoints/step-00000006.h5"
    same_as_undisturbed "$run" || fail "$run"
done

# Likewise, with a second place; there the same command continues, with or without room.
run=moves
full_from_9 "elsewhere $plenty"
expect 0 "is in checkpoint.fallback_dir: elsewhere/.*/moves/checkpoints/step-00000012.h5; make room" \
    --checkpoint.fallback_dir=elsewhere
[[ ! -e moves/checkpoints/step-00000012.h5 ]] || fail "run.dir had room"
[[ $(find elsewhere -name 'step-*' | wc -l) == 1 ]] || fail "more than one checkpoint is elsewhere"
steps=15
expect 0 "^warning: there is no room for a checkpoint: it needs .*; until there is, they go to elsewhere/" \
    --checkpoint.fallback_dir=elsewhere
echo "moves $plenty" >free
steps=18
expect 0 "resumed from elsewhere/.*step-00000015.h5 at step 15" --checkpoint.fallback_dir=elsewhere
[[ -e moves/checkpoints/step-00000018.h5 ]] || fail "the run did not go on"

# Given up: status 2, and older checkpoints as they were.
steps=12
run=gives-up
full_from_9
expect 2 "^llampi: .*cannot write the checkpoint gives-up/checkpoints/.*; once that is mended, the same command continues the run; the newest checkpoint is of step 6$" \
    --checkpoint.wait_minutes=0
[[ $(find gives-up/checkpoints -type f | wc -l) == 2 ]] || fail "left are $(ls gives-up/checkpoints)"

# Nothing continues a run that begins anew each time.
run=anew
full_from_9
expect 2 "^llampi: .*cannot write the checkpoint anew/checkpoints/.* are free; make room there, or set run.dir to another place; the newest checkpoint is of step 6$" \
    --checkpoint.wait_minutes=0 --run.resume=never

# A state that diverged replaces nothing, wherever it goes.
diverging=(--optimizer.lr=1e30 --optimizer.warmup_steps=0 --train.not_finite='skip 100')
run=diverges
mkdir $run
printf '%s\n' "elsewhere $plenty" "$run 1000" >free
expect 0 "the checkpoint of step 12 may be unusable: the last .* with labels were not finite" \
    --checkpoint.fallback_dir=elsewhere --checkpoint.every=1 --run.resume=never "${diverging[@]}"
grep -q "step-00000012.h5; make room in $run$" $run.log || fail "nothing continues from there"
[[ $(find elsewhere -path '*/diverges/*' -name 'step-*' | wc -l) == 2 ]] ||
    fail "left elsewhere are $(find elsewhere -path '*/diverges/*')"

# Nor does it make room for itself.
run=diverges-later
steps=6
mkdir $run
echo "$run $plenty" >free
expect 0 "saved $run/checkpoints/step-00000006.h5"
steps=9
echo "$run $((estimate - 1000))" >free
expect 2 "cannot write the checkpoint $run/checkpoints/step-00000009.h5" --checkpoint.wait_minutes=0 --run.resume_with_changes=true "${diverging[@]}"
[[ $(find $run/checkpoints -type f | wc -l) == 2 ]] || fail "left are $(ls $run/checkpoints)"
