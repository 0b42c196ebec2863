#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kill_drill.sh SOURCE LLAMPI TRIALS SEED: kills one rank, or all and mpirun, at random moments of a run of a few seconds, and
# starts it again by the same command, until it is done. Every run must end like one that nobody disturbed.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
steps=150
trials=$3
RANDOM=$4
prepare "$1" "$2"

begin=$EPOCHREALTIME
train_undisturbed 2
milliseconds=$(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))

kills=0
for ((trial = 1; trial <= trials || kills < trials; ++trial)); do # a moment may come after the end
    ((trial <= 10 * trials)) || fail "only $kills kills in $((trial - 1)) trials"
    run=run$trial
    options=("--checkpoint.async=$([[ $((trial % 2)) == 0 ]] && echo true || echo false)")
    for ((attempt = 1; ; ++attempt)); do
        ((attempt <= 30)) || fail "trial $trial does not come to its end"
        start $run 2 "${options[@]}"
        if ((attempt <= 3)); then # then it is left alone
            wait_ms=$((RANDOM * milliseconds / 32768))
            sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
            read -r -d "" -a ranks < <(cat /proc/"$job"/task/*/children 2>/dev/null) || true
            if ((${#ranks[@]} > 0)); then
                if ((RANDOM % 3 == 0)); then
                    kill -9 "$job" "${ranks[@]}" 2>/dev/null || true
                else
                    kill -9 "${ranks[RANDOM % ${#ranks[@]}]}" 2>/dev/null || true
                fi
                kills=$((kills + 1))
            elif ((attempt == 1)) && [[ ! -e /proc/$job ]]; then # it was over: the machine is faster than it was
                milliseconds=$((milliseconds * 3 / 4))
            fi
        fi
        status=0
        wait_for_job || status=$?
        wait_for_ranks # whose mpirun was killed
        ((status != 0)) || break
        ((status != 2 && status != 75)) || fail "trial $trial, attempt $attempt ended with status $status"
    done
    same_as_undisturbed $run || fail "trial $trial"
    rm -rf "$run"
done
echo "$((trial - 1)) trials, $kills kills"
