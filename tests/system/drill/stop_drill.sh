#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# stop_drill.sh SOURCE LLAMPI RANKS STOPS SEED: SIGUSR1 to mpirun, or the stop file, at random moments of a run of several hundred
# steps, STOPS times: each time status 75 and a whole checkpoint, and in the end the curve of a run that nobody stopped.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
steps=300
ranks=$3
stops=$4
RANDOM=$5
prepare "$1" "$2"

train_undisturbed "$ranks"

stopped=0
while ((stopped < stops)); do
    run=run$stopped
    for ((attempt = 1; ; ++attempt)); do
        start $run "$ranks" "--checkpoint.async=$([[ $((attempt % 2)) == 0 ]] && echo true || echo false)"
        # mpirun itself dies of the signal before it has started its ranks, and so do they before MPI is initialised.
        until [[ -e $run/config.ini && $run/config.ini -nt $run.log.seen ]] || ! kill -0 "$job" 2>/dev/null; do sleep 0.01; done
        sleep 0.$((RANDOM % 10))$((RANDOM % 10))
        if ((RANDOM % 2 == 0)); then touch "$run/stop"; else kill -USR1 "$job" 2>/dev/null || true; fi
        status=0
        wait "$job" || status=$?
        touch "$run.log.seen"
        # mpirun dies of a signal that comes after its ranks have ended: then the run is at its end.
        if ((status == 138)) && [[ -e $run/checkpoints/step-$(printf %08d $steps).h5 ]]; then status=0; fi
        ((status != 0)) || break
        ((status == 75)) || fail "attempt $attempt ended with status $status"
        stopped=$((stopped + 1))
        last=$(tail -1 "$run/metrics.jsonl" | sed -E 's/.*"step": ([0-9]+).*/\1/')
        # Stopped before its first step, it has nothing to save.
        [[ -z $last || -e $run/checkpoints/step-$(printf %08d "$last").h5 ]] || fail "no checkpoint of step $last, the last of metrics.jsonl"
        [[ ! -e $run/stop ]] || fail "the stop file is still there"
    done
    rm -f "$run/stop" # it came after the end
    same_as_undisturbed $run || fail "after $stopped stops"
    rm -rf "$run"
done
echo "$stopped stops on $ranks ranks"
