# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# What the job scripts do alike, whatever the scheduler; sourced by slurm.sh and pbs.sh. docs/clusters.md has the rules and
# the variables JOB_*.
#
#   read_settings                  the site file, modules and container: sets llampi, alone, and container
#   start_command NAME...          sets launch, where the site file has not, and puts the container into it
#   prepare_run NAME INDEX CONFIG [--section.key=value ...]
#                                  sets run_dir, train (the command of a rank), max_hours (run.max_hours as configured; 0: none) and
#                                  is_new (no: there are checkpoints)
#   warn_of_idle_gpus GPUS RANKS   of one node
#   check_first                    llampi check, if JOB_CHECK asks for it; sets check_seconds, which it took
#   finish STATUS [time]           what the ranks ended with: ends the script, and continues the chain where that is right;
#                                  time: they were told to stop because the job's time is up
#
# For finish a job script sets `chain` (requeue, submit or none), `continues` (what is written when the chain goes on) and
# the functions
#
#   may_continue                   whether another job can follow; says why not
#   failures_before                prints how many jobs in a row have failed before this one
#   continue_with FAILURES         puts the next job into the queue

give_up() { # a mistake of the user's
    echo "$*" >&2
    exit 2
}

# ---- settings of the machine ------------------------------------------------------------------------------------------

# load_modules NAME...: as `module load`, also in a shell that has not heard of modules; ends the job where one is missing.
load_modules() {
    local init unset_is_error=no
    if [[ $- == *u* ]]; then unset_is_error=yes; fi
    set +u # the functions of module systems read variables that are not set
    if ! declare -F module >/dev/null; then
        for init in "$LMOD_PKG/init/bash" "$MODULESHOME/init/bash" /etc/profile.d/{lmod,z00_lmod,modules,z00-modules}.sh; do
            # shellcheck source=/dev/null
            if [[ -r $init ]] && source "$init" && declare -F module >/dev/null; then break; fi
        done
    fi
    declare -F module >/dev/null || give_up "cannot load modules ($*): this shell has no command 'module'; source its init file in the site file"
    module load "$@" || give_up "cannot load the modules $*; 'module avail' lists those of this machine"
    if [[ $unset_is_error == yes ]]; then set -u; fi
}

read_settings() {
    local runtime
    alone=() container=()
    unset launch llampi # the site file's, not those of the shell that submitted
    if [[ -n ${JOB_SITE:-} ]]; then
        local site=$JOB_SITE
        if [[ $site != */* ]]; then # a file of the working folder, or a name; `source` would look in PATH
            if [[ -f $site ]]; then site=./$site; else site=$scripts/sites/${site%.env}.env; fi
        fi
        [[ -r $site ]] || give_up "JOB_SITE: cannot read ${site#./} (JOB_SITE=$JOB_SITE, seen from $PWD)"
        set +u # it is the user's
        # shellcheck source=jobscripts/sites/example.env
        source "$site" || give_up "JOB_SITE: $site ended with status $?"
        set -u
    fi
    [[ ${JOB_RETRIES:-3} =~ ^(0|[1-9][0-9]*)$ ]] || give_up "JOB_RETRIES=$JOB_RETRIES: use a number of retries; 0: none"
    # shellcheck disable=SC2086 # one word for each module
    if [[ -n ${JOB_MODULES:-} ]]; then load_modules $JOB_MODULES; fi
    if [[ -n ${JOB_IMAGE:-} ]]; then
        [[ -e $JOB_IMAGE ]] || give_up "JOB_IMAGE: there is no image $JOB_IMAGE, seen from $PWD"
        runtime=$(command -v apptainer || command -v singularity) || give_up "JOB_IMAGE: there is neither apptainer nor singularity on this node; load its module (JOB_MODULES)"
        container=("$runtime" exec --bind "$PWD")
        if [[ -e /dev/nvidiactl ]]; then container+=(--nv); fi
        container+=("$JOB_IMAGE")
    fi
    if ((${#container[@]} && ${#alone[@]} == 0)); then alone=("${container[@]}"); fi
    if [[ -z ${llampi:-} ]]; then
        if ((${#container[@]})); then
            llampi=llampi
        else
            # Built here, installed with these scripts, in a bundle with them, or a module's.
            for llampi in build/llampi "$scripts/../../../bin/llampi" "$scripts/../bin/llampi" "$(command -v llampi)"; do
                if [[ -x $llampi ]]; then break; fi
            done
            [[ -x $llampi ]] || give_up "there is no build/llampi in $PWD and no llampi on the PATH: submit from the folder with build/, load its module, or set llampi= in the site file"
        fi
    fi
    # Where the launcher is mpirun: a network link that is cut ends the job within seconds instead of holding it to its
    # walltime (Open MPI 4).
    export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-5}
    export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-2}
    export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-3}
}

start_command() {
    if [[ -z ${launch+set} ]]; then launch=("$@"); fi
    launch+=(${container[@]+"${container[@]}"})
}

warn_of_idle_gpus() {
    local ranks="$2 ranks"
    if (($2 == 1)); then ranks="1 rank"; fi
    if (($1 > $2)); then
        echo "warning: a node of this job has $1 GPUs and $ranks, and a rank uses one: $(($1 - $2)) will be idle" >&2
    fi
}

# ---- the run ----------------------------------------------------------------------------------------------------------

# How far this job has come, by what it has added to the history: `saved` a checkpoint that the next job goes on from, which
# has all state and is of a later step than this job began with; `trained`, but no such checkpoint; or `started`.
progress() {
    tail -n "+$((history_lines + 1))" "$run_dir/history.jsonl" 2>/dev/null | awk '
        BEGIN { reached = "started" }
        { step = $0; sub(/.*"step":/, "", step); step += 0 }
        /"event":"start"/ { start = step }
        /"event":"memory"/ && reached == "started" { reached = "trained" }
        /"event":"checkpoint"/ && !/"content":"weights"/ && /"file":"checkpoints\// && step > start { reached = "saved" }
        END { print reached }'
}

# Whether this job and the one before have ended because a loss or gradient was not finite, at the same step. The first time that may be
# a fault of the machine; a repeated step has the same bits.
diverged_again() {
    awk -v earlier="${history_lines:-0}" '
        /"event":"end"/ {
            before = last
            last = ""
            line = NR
            if (/"reason":"not_finite"/) { last = $0; sub(/.*"step":/, "", last); last += 0 }
        }
        END { exit !(line > earlier && last != "" && last == before) }' "$run_dir/history.jsonl" 2>/dev/null
}

# One folder for all jobs of this chain: JOB_RUN_DIR, else run.dir as given to llampi, else runs/NAME. The tasks of a job
# array get one each.
prepare_run() {
    local name=$1 index=$2 settings named
    shift 2
    train=("$llampi" train --config "$@")
    settings=$(${alone[@]+"${alone[@]}"} "${train[@]}" --print-config) || exit
    named=$(sed -n '/^\[run\]$/,/^\[/s/^dir = //p' <<<"$settings" | sed 's,\(.\)/*$,\1,')
    run_dir=${JOB_RUN_DIR:-${named:-runs/$name}${index:+-$index}}
    if [[ -n $index && -n ${JOB_RUN_DIR:-} && -z ${JOB_FAILURES:-} ]]; then # else it comes from the job before
        echo "warning: all tasks of this array use one run folder, JOB_RUN_DIR=$JOB_RUN_DIR; without JOB_RUN_DIR each gets its own" >&2
    fi
    # shellcheck disable=SC2034 # of pbs.sh
    max_hours=$(sed -n '/^\[run\]$/,/^\[/s/^max_hours = //p' <<<"$settings")
    if [[ $run_dir != "$named" ]]; then train+=(--run.dir="$run_dir"); fi
    if compgen -G "$run_dir/checkpoints/step-*.h5" >/dev/null; then is_new=no; else is_new=yes; fi
    history_lines=$(grep -c "" "$run_dir/history.jsonl" 2>/dev/null || true)
    rm -f "$run_dir/stopped"
}

# JOB_CHECK=1: before the first job's run, `llampi check` with the same ranks and configuration. A check that fails ends the job; one
# that crashes is a failure like those of the run.
check_first() {
    local status begin=$SECONDS
    # shellcheck disable=SC2034 # of pbs.sh
    check_seconds=0
    case ${JOB_CHECK:-0} in
    0) return ;;
    1) ;;
    *) give_up "JOB_CHECK=$JOB_CHECK: use 1 (check before the first job's run) or 0" ;;
    esac
    if [[ $is_new == no ]]; then return; fi
    "${launch[@]}" "$llampi" check "${train[@]:2}"
    status=$?
    # shellcheck disable=SC2034
    check_seconds=$((SECONDS - begin))
    case $status in
    0) return ;;
    1 | 2 | 126 | 127) ;;
    *) # it did not get to an end: a crash, a lost node
        echo "llampi check ended with status $status, before the run was started (JOB_CHECK=1)" >&2
        finish "$status"
        ;;
    esac
    echo "llampi check ended with status $status: the run was not started (JOB_CHECK=1), and the job is not submitted again" >&2
    exit "$status"
}

# ---- the end ----------------------------------------------------------------------------------------------------------

not_submitted() { echo "the next job could not be put into the queue, for the reason above: submit it again to continue" >&2; }

finish() {
    local status=$1 told=${2:-} failures reached
    failures=$(failures_before)
    case $status in
    0) exit 0 ;;
    2 | 126 | 127)
        echo "ended with status $status: invalid input, or no such program (see above); not submitted again" >&2
        exit "$status"
        ;;
    esac
    if [[ -e $run_dir/stopped || -e $run_dir/stop ]]; then
        echo "stopped by the file $run_dir/stop; not submitted again" >&2
        exit "$status"
    fi
    reached=$(progress)
    if [[ $reached == saved ]]; then failures=0; fi
    # Preempted while it started, the run may get further the next time: that is a failure like others.
    if ((status == 75)) && [[ $reached != started || $told == time ]]; then
        if [[ $reached != saved ]]; then
            echo "stopped early without a new checkpoint in $run_dir (more time per job or more room is needed: see above); not submitted again" >&2
            exit 1
        fi
        if [[ $chain == none ]]; then
            echo "saved in $run_dir; the same job continues it (JOB_CHAIN=none: not submitted again)"
            exit 75
        fi
        may_continue || exit 75
        echo "saved in $run_dir; $continues"
        if continue_with 0; then exit 0; fi
        not_submitted
        exit 75
    fi
    if ((status == 75)); then echo "stopped before the first step" >&2 && status=1; fi
    if [[ $chain == none ]]; then
        echo "failed with status $status (JOB_CHAIN=none: not submitted again)" >&2
        exit "$status"
    fi
    if diverged_again; then
        echo "failed with status $status for the second time at a step whose loss or gradient is not finite: a third job would too; not submitted again" >&2
        exit "$status"
    fi
    if ((failures >= ${JOB_RETRIES:-3})); then
        echo "failed with status $status, $failures retries made since the newest checkpoint; not submitted again" >&2
        exit "$status"
    fi
    may_continue || exit "$status"
    echo "failed with status $status; $continues for retry $((failures + 1)) of ${JOB_RETRIES:-3}" >&2
    continue_with $((failures + 1)) || not_submitted
    exit "$status"
}
