#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Slurm: trains in as many jobs as it takes. From the folder with build/ and input/:
#
#   JOB_SITE=jobscripts/sites/NAME.env sbatch jobscripts/slurm.sh input/llama3-8b.ini [--section.key=value ...]
#
# Ahead of the walltime the ranks save and stop with status 75; the job then goes back into the queue and continues.
# A job that fails (a lost node, a crash, the watchdog) goes back as well, a few times. To end it early with everything
# saved: touch RUN_DIR/stop. All of this, the variables JOB_* (modules, containers, chains without requeue), and job
# arrays: docs/clusters.md. Settings of the machine are in the site file, see jobscripts/sites/example.env.

#SBATCH --job-name=llampi
#SBATCH --nodes=2
# One rank per GPU; on CPUs one per socket or NUMA domain, with its cores as threads.
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
# All ranks of a node see its GPUs, and each takes one. Not --gpus-per-task=1 without --gpu-bind=none: ranks that cannot open each
# other's GPUs exchange through the host.
##SBATCH --gpus-per-node=2
#SBATCH --time=04:00:00
# To this shell, which passes it on: time for the step in flight and for one checkpoint. Slurm may be a minute early.
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -uo pipefail
interrupted=no
# Until the ranks are there to be told.
# shellcheck disable=SC2317 # the traps call it
time_is_up() {
    interrupted=yes
    if ((SECONDS < 60)); then
        echo "the signal that the time is up came after $SECONDS s: if the time limit is not longer than the time of --signal, use e.g. --time=5 --signal=B:USR1@60" >&2
    fi
}
trap time_is_up USR1
# Slurm starts this in the folder that sbatch was called in, or that of --chdir.

if [[ -z ${SLURM_JOB_ID:-} ]]; then
    echo "this is a script for Slurm: submit it with sbatch ${0##*/}" >&2
    exit 2
fi
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi

# Slurm runs a copy of this file; the file that it shares with pbs.sh is where the original was, or in the usual places.
# The script and its arguments, each of which may have spaces.
submitted=$(scontrol show job "$job" | sed -n 's/^ *Command=//p' | head -n 1)
while [[ ! -r ${submitted%/*}/common.sh && $submitted == *" "* ]]; do submitted=${submitted% *}; done
program=$(command -v llampi)
for scripts in "${JOB_SCRIPTS:-}" "${0%/*}" "${submitted%/*}" jobscripts "${program%/bin/*}/share/llampi/jobscripts"; do
    if [[ -r $scripts/common.sh ]]; then break; fi
done
if [[ ! -r $scripts/common.sh ]]; then
    echo "there is no common.sh next to ${submitted:-the job script} and no jobscripts/common.sh in $PWD: keep the job scripts together, or set JOB_SCRIPTS to their folder" >&2
    exit 2
fi
# shellcheck source=jobscripts/common.sh
source "$scripts/common.sh"
scripts=$(cd "$scripts" && pwd)

if (($# == 0)); then give_up "usage: sbatch jobscripts/slurm.sh CONFIG.ini [--section.key=value ...]"; fi
arguments=("$@")
chain=${JOB_CHAIN:-requeue}
case $chain in
requeue) continues="back into the queue" ;;
submit) continues="submitting the next job" ;;
none) continues= ;;
*) give_up "JOB_CHAIN=$chain: it is requeue, submit or none" ;;
esac

unset OMP_NUM_THREADS # the shell's that submitted; the site file's stays
unset SLURM_EXPORT_ENV # --export of sbatch, which srun would take for its own: the ranks have the environment of this script
read_settings
# When one rank has ended, the others have 30 seconds: enough to leave with status 75 together, and the end of a job
# whose rank died. --kill-on-bad-exit=1 would kill ranks that leave a little later, and the status would not be 75.
if ((${#container[@]})); then export PMIX_MCA_gds=${PMIX_MCA_gds:-hash}; fi # its other ways use files that a container does not see
start_command srun --mpi=pmix --kill-on-bad-exit=0 --wait=30
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
case ${launch[0]##*/} in
mpirun | mpiexec) ;; # starts its daemons with srun: each is to have the CPUs of all tasks of its node
*) export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} ;; # srun no longer takes it from the job by itself
esac
if [[ ${SLURM_NTASKS_PER_NODE:-} =~ ^[0-9]+$ ]]; then warn_of_idle_gpus "${SLURM_GPUS_ON_NODE:-0}" "$SLURM_NTASKS_PER_NODE"; fi
prepare_run "$SLURM_JOB_NAME" "${SLURM_ARRAY_TASK_ID:-}" "$@"

# ---- the next job -----------------------------------------------------------------------------------------------------

# An attribute of this job, a word; of what may_continue has read.
attribute() { tr ' ' '\n' <<<"$attributes" | sed -n "s/^$1=//p" | head -n 1; }

may_continue() {
    attributes=$(scontrol --oneliner show job "$job")
    if [[ -z $attributes && $chain == submit ]]; then
        echo "not submitted again, for scontrol does not say what this job was submitted with: submit it by hand" >&2
        return 1
    fi
    if [[ $chain == requeue && $(attribute Requeue) == 0 ]]; then
        echo "this job may not go back into the queue (--no-requeue): submit it again to continue, or set JOB_CHAIN=submit" >&2
        return 1
    fi
}

# A job that goes back keeps the environment of its submission, so its failures are in a file.
failures_file=$run_dir/failures
failures_before() {
    local failed_job failures=${JOB_FAILURES:-0}
    if [[ -e $failures_file ]]; then
        read -r failed_job failures <"$failures_file"
        rm -f "$failures_file"
        if [[ $failed_job != "$job" ]]; then failures=0; fi
    fi
    echo "$failures"
}

continue_with() {
    if [[ $chain == submit ]]; then
        submit_next "$1"
        return
    fi
    if (($1)); then mkdir -p "$run_dir" && echo "$job $1" >"$failures_file" || return; fi
    scontrol requeue "$job" || { rm -f "$failures_file"; return 1; }
}

# Submits a job like this one, which waits for the end of it. What Slurm does not say of a job (--signal) is taken from
# the #SBATCH lines of the script and from SBATCH_* variables, but not --export: the next job needs the variables JOB_* of this one.
submit_next() {
    local options option value
    options=(--export=ALL --dependency="afterany:$job" --chdir="$PWD" --job-name="$SLURM_JOB_NAME" --nodes="$SLURM_JOB_NUM_NODES")
    for option in account:JOB_ACCOUNT partition:JOB_PARTITION qos:JOB_QOS reservation:JOB_RESERVATION ntasks:NTASKS \
        ntasks-per-node:NTASKS_PER_NODE cpus-per-task:CPUS_PER_TASK gpus:GPUS gpus-per-node:GPUS_PER_NODE \
        gpus-per-task:GPUS_PER_TASK mem:MEM_PER_NODE mem-per-cpu:MEM_PER_CPU mem-per-gpu:MEM_PER_GPU array:ARRAY_TASK_ID; do
        value=SLURM_${option#*:}
        if [[ -n ${!value:-} ]]; then options+=("--${option%%:*}=${!value}"); fi
    done
    for option in time:TimeLimit constraint:Features gres:TresPerNode exclude:ExcNodeList nodelist:ReqNodeList licenses:Licenses wckey:WCKey; do
        value=$(attribute "${option#*:}")
        if [[ ${option%%:*} == gres ]]; then
            # Without those of --gpus-per-node, which are in it as well.
            value=$(tr ',' '\n' <<<"$value" | sed 's,^gres[:/],,' | grep -vE "${SLURM_GPUS_PER_NODE:+^gpu(:|$)|}^$" | paste -sd ,)
        fi
        if [[ -n $value && $value != "(null)" && $value != "*"* ]]; then options+=("--${option%%:*}=$value"); fi
    done
    case $(attribute OverSubscribe) in
    NO) options+=(--exclusive) ;;
    USER) options+=(--exclusive=user) ;;
    esac
    if [[ $(attribute Requeue) == 0 ]]; then options+=(--no-requeue); fi
    export JOB_RUN_DIR=$run_dir JOB_FAILURES=$1 JOB_SCRIPTS=$scripts
    ( # not as a part of this job
        while read -r value; do unset "$value"; done < <(compgen -e | grep -E '^(SLURM|SLURMD|SRUN)_' | grep -vx SLURM_CONF)
        sbatch "${options[@]}" "${JOB_SCRIPT:-$0}" "${arguments[@]}"
    )
}

# ---- the ranks --------------------------------------------------------------------------------------------------------

check_first
if [[ $interrupted == yes ]]; then finish 75 time; fi # ranks that have hardly started would be killed by the signal
"${launch[@]}" "${train[@]}" &
ranks=$!
told=
trap 'time_is_up; told="time"; kill -USR1 $ranks' USR1
if [[ $interrupted == yes ]]; then told="time" && kill -USR1 $ranks; fi
while :; do
    interrupted=no
    wait $ranks
    status=$?
    if [[ $interrupted == no ]]; then break; fi # else it was the signal that ended `wait`, not the ranks
done
trap '' USR1
finish "$status" "$told"
