# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the tests of the job scripts: a folder to submit from, and commands that stand in for the schedulers'. What a command was
# called with is appended to calls, one line each.
#
#   prepare SOURCE LLAMPI            an empty folder with build/llampi, input.ini and stand-ins; enters it
#   stand_in NAME                    a command NAME of what is on standard input, which begins with writing its call
#   will_end "STATUS [STEP [START [CONTENT]]]"...
#                                    how the ranks of the next jobs end, in order: with a checkpoint of STEP if it is given, after the
#                                    checkpoint of START (otherwise the newest) and with all state unless CONTENT is weights. STEP
#                                    "early": before the first step. STATUS "not_finite": 1, by a loss that is not finite at step 7
#   expect WHAT ACTUAL EXPECTED      fails the test, at its end, unless ACTUAL matches the pattern EXPECTED
#   finish                           the status of the test

prepare() {
    source_dir=$1
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cd "$folder" || exit 1
    export FOLDER=$folder LLAMPI=$2 PATH=$folder/bin:$PATH
    while read -r name; do unset "$name"; done < <(compgen -e | grep -E '^(LLAMPI|JOB|SLURM|PBS|OMPI)_')
    mkdir -p bin build jobscripts
    cp "$source_dir"/jobscripts/*.sh jobscripts/
    printf '[model]\nconfig = config.json\n[data]\ntrain = train.h5\n[train]\nsteps = 100\n' >input.ini
    stand_in build/llampi <<'SH'
if [[ " $* " == *" --print-config "* ]]; then exec "$LLAMPI" "$@"; fi
if [[ $1 == check && -n ${SIGNAL:-} ]]; then kill -USR1 $PPID; fi # ahead of the walltime, before the run
read -r status step start content <"$FOLDER/endings"
sed -i 1d "$FOLDER/endings"
if [[ $1 == check ]]; then exit "$status"; fi # it writes nothing
run_dir=runs/default
for argument in "$@"; do if [[ $argument == --run.dir=* ]]; then run_dir=${argument#*=}; fi; done
if [[ $run_dir == runs/default ]]; then run_dir=$("$LLAMPI" "$@" --print-config | sed -n '/^\[run\]$/,/^\[/s/^dir = //p'); fi
mkdir -p "$run_dir/checkpoints"
newest=$(ls "$run_dir/checkpoints" | sed -n 's/^step-0*\([0-9]*\).h5$/\1/p' | sort -n | tail -n 1)
{
    echo '{"event":"start","time":1.5,"step":'"${start:-${newest:-0}}"',"total_steps":100,"tokens_per_step":8}'
    if [[ $step != early ]]; then echo '{"event":"memory","time":2.5,"used_bytes":{"device":1}}'; fi
    if [[ $step == [0-9]* ]]; then
        file=checkpoints/step-$(printf %08d "$step").h5
        touch "$run_dir/$file"
        echo '{"event":"checkpoint","time":3.5,"step":'"$step"',"file":"'"$file"'","content":"'"${content:-all}"'","seconds":0.1}'
    fi
    if [[ $status == not_finite ]]; then echo '{"event":"end","time":4.5,"step":7,"outcome":"failed","reason":"not_finite"}'; fi
} >>"$run_dir/history.jsonl"
if [[ $status == not_finite ]]; then status=1; fi
if [[ $status == 75 && -e $run_dir/stop ]]; then mv "$run_dir/stop" "$run_dir/stopped"; fi
exit "$status"
SH
    failed=0
}

stand_in() {
    local file=$1
    if [[ $file != */* ]]; then file=bin/$file; fi
    {
        echo '#!/bin/bash'
        # shellcheck disable=SC2016
        echo 'echo "${0##*/} $*" >>"$FOLDER/calls"'
        cat
    } >"$file"
    chmod +x "$file"
}

will_end() { printf '%s\n' "$@" >endings; }

# The last call of a command.
last() { grep "^$1 " calls | tail -1; }
count() { grep -c "^$1 " calls; }

expect() {
    # shellcheck disable=SC2053
    if [[ $2 != $3 ]]; then
        printf '%s: %s\n  is not %s\n' "$1" "$2" "$3" >&2
        sed 's/^/  > /' log >&2
        failed=1
    fi
}

finish() { exit "$failed"; }
