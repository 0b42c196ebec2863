#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PBS: trains in as many jobs as it takes. From the folder with build/ and input/:
#
#   qsub -v JOB_CONFIG=input/llama3-8b.ini,JOB_SITE=jobscripts/sites/NAME.env jobscripts/pbs.sh
#
# and, to override keys, also JOB_ARGS="--train.steps=1000 --optimizer.lr=1e-4" or LLAMPI_TRAIN_STEPS=1000.
# At the walltime PBS gives a job only seconds. The program therefore watches the time itself: before JOB_HOURS have
# passed it saves and stops with status 75, and this script submits the next job, with the resources, queue, account and
# variables of this one. A job that fails (a lost node, a crash, the watchdog) is followed by another as well, a few
# times. To end it early with everything saved: touch RUN_DIR/stop. (Not qsig: PBS sends the signal to the whole session,
# whose login shell it kills.) All of this, and the variables JOB_* (modules, containers, chains): docs/clusters.md.
# Settings of the machine are in the site file, see jobscripts/sites/example.env.

#PBS -N llampi
# mpiprocs: one rank per GPU; on CPUs one per socket or NUMA domain, with ompthreads cores each. With GPUs
# select=2:ncpus=16:mpiprocs=2:ompthreads=8:ngpus=2
#PBS -l select=2:ncpus=16:mpiprocs=2:ompthreads=8
#PBS -l walltime=04:00:00
#PBS -r y
#PBS -j oe

set -uo pipefail
if [[ -z ${PBS_O_WORKDIR:-} ]]; then
    echo "this is a script for PBS: submit it with qsub ${0##*/}" >&2
    exit 2
fi
cd "$PBS_O_WORKDIR" || exit 2

# PBS runs a copy of this file; the file that it shares with slurm.sh is in the usual places.
program=$(command -v llampi)
for scripts in "${JOB_SCRIPTS:-}" "${0%/*}" "$(dirname "${JOB_SCRIPT:-/}")" jobscripts "${program%/bin/*}/share/llampi/jobscripts"; do
    if [[ -r $scripts/common.sh ]]; then break; fi
done
if [[ ! -r $scripts/common.sh ]]; then
    echo "there is no jobscripts/common.sh in $PWD: submit from the folder with jobscripts/, or set JOB_SCRIPTS to the folder of the job scripts" >&2
    exit 2
fi
# shellcheck source=jobscripts/common.sh
source "$scripts/common.sh"
scripts=$(cd "$scripts" && pwd)

if [[ -z ${JOB_CONFIG:-} ]]; then give_up "usage: qsub -v JOB_CONFIG=FILE.ini jobscripts/pbs.sh"; fi
chain=${JOB_CHAIN:-submit} continues="submitting the next job"
case $chain in
submit | none) ;;
requeue) give_up "JOB_CHAIN=requeue: PBS lets only operators rerun a job; it is submit or none here" ;;
*) give_up "JOB_CHAIN=$chain: it is submit or none" ;;
esac

declare -A environment # before the site file and modules
for name in $(compgen -e); do environment[$name]=${!name}; done
read_settings

# This job as PBS has it, one attribute a line. After the site file, which may have a qstat of its own.
for wait in 0 5 20; do
    sleep $wait
    attributes=$(qstat -f "$PBS_JOBID" | sed -e ':join' -e 'N' -e '$!bjoin' -e 's/\n\t//g')
    if [[ -n $attributes ]]; then break; fi
done
attribute() { sed -n "s/^ *$1 = //p" <<<"$attributes"; }
# Names of the variables that this job was given with -v and -V, but PBS's and those of these scripts.
given_variables() { attribute Variable_List | tr ',' '\n' | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' | grep -vE '^(PBS|JOB|LLAMPI)_'; }
if [[ -z $attributes && $chain == submit ]]; then
    echo "qstat -f $PBS_JOBID says nothing: this job will not be followed by another with the same resources" >&2
fi
# Of the first kind of node: GPUs, ranks, and threads of a rank: PBS sets OMP_NUM_THREADS from ompthreads, and without that to all
# CPUs of the chunk. The site file's stays. Without mpiprocs PBS counts one rank.
read -r gpus ranks threads < <(attribute Resource_List.select | sed 's/+.*//' | tr ':' '\n' |
    awk -F= '{ n[$1] = $2 }
             END {
                 ranks = ("mpiprocs" in n) ? n["mpiprocs"] + 0 : 1
                 share = int(n["ncpus"] / (ranks > 1 ? ranks : 1))
                 print n["ngpus"] + 0, ranks, (("ompthreads" in n) || share < 1 ? "" : share)
             }')
if [[ -n $threads && ${OMP_NUM_THREADS:-} == "${environment[OMP_NUM_THREADS]:-}" ]]; then
    OMP_NUM_THREADS=$threads
    cores=$(attribute Resource_List.select | tr '+' '\n' | awk -F '[:=]' '
        { ranks = 1; cpus = 0
          for (i = 1; i < NF; ++i) { if ($i == "mpiprocs" && $(i + 1) > 1) ranks = $(i + 1); if ($i == "ncpus") cpus = $(i + 1) }
          if (cpus > 0) print int(cpus / ranks) }' | sort -un | paste -sd, | sed 's/,/ or /g')
    if [[ $cores == *or* ]]; then
        echo "warning: a rank has $cores CPUs, by the chunks of select, and all ranks get the threads of the first chunk" >&2
    fi
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# For an mpirun that was built without PBS. A host has as many ranks as lines in the node file: without a number it would
# get as many as it has cores.
hosts=$(awk '!($1 in n) { host[++hosts] = $1 } { ++n[$1] }
             END { for (i = 1; i <= hosts; ++i) printf "%s%s:%d", (i > 1 ? "," : ""), host[i], n[host[i]] }' "$PBS_NODEFILE")
# mpirun passes on OMPI_* by itself; the rest are what the site file and modules have set, also in an earlier job of the chain, whose
# variables this one was given, and some others. Not the GPUs that PBS has given this node: each node has its own.
given=" $(given_variables | tr '\n' ' ')"
exported=()
for name in $(compgen -e | grep -vE '^(CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|OMPI_.*|PWD|OLDPWD|SHLVL|_.*|LMOD.*|LOADEDMODULES.*|MODULE.*)$'); do
    if [[ $name =~ ^(NCCL|UCX|FI|CUDA|LLAMPI)_ || $name =~ ^(OMP_NUM_THREADS|LD_LIBRARY_PATH)$ || ${environment[$name]-} != "${!name}" || $given == *" $name "* ]]; then
        if [[ -n ${!name} ]]; then exported+=(-x "$name"); fi
    fi
done
# Open MPI finds its own programs on other nodes if it is called by its path.
start_command "$(command -v mpirun || echo mpirun)" -n "$(wc -l <"$PBS_NODEFILE")" --host "$hosts" --bind-to none "${exported[@]}"

if ((ranks > 0)); then warn_of_idle_gpus "$gpus" "$ranks"; fi

read -r -d '' -a arguments <<<"${JOB_ARGS:-}"
prepare_run "$PBS_JOBNAME" "${PBS_ARRAY_INDEX:-}" "$JOB_CONFIG" ${arguments[@]+"${arguments[@]}"}

# ---- the next job -----------------------------------------------------------------------------------------------------

# Resources of the whole job, NAME=VALUE: select, place, walltime and so on, without the sums over chunks that PBS adds.
resources() {
    awk '{ sub(/^ +/, ""); name = $1; value = substr($0, index($0, " = ") + 3) }
         sub(/^Resource_List\./, "", name) { list[name] = value }
         name == "schedselect" { chunks = value }
         END {
             if ("select" in list) {
                 n = split(chunks ":" list["select"] ":nodes", of_chunks, /[:+]/)
                 for (i = 1; i <= n; ++i) { sub(/=.*/, "", of_chunks[i]); delete list[of_chunks[i]] }
             }
             delete list["nodect"]; delete list["neednodes"]
             for (name in list) print name "=" list[name]
         }' <<<"$attributes" | sort
}

# Names of the variables of this job. Their values qsub takes from the environment, whatever is in them.
variables() {
    {
        compgen -e | grep -E '^(JOB|LLAMPI)_'
        given_variables
        if [[ -n ${PBS_ARRAY_INDEX:-} ]]; then echo PBS_ARRAY_INDEX; fi
    } | sort -u | comm -12 - <(compgen -e | sort -u) | paste -sd, -
}

failures_before() { echo "${JOB_FAILURES:-0}"; }

may_continue() {
    if [[ -z $attributes ]]; then
        echo "not submitted again, for its resources are not known: submit it by hand" >&2
        return 1
    fi
}

# Submits the job that continues this one.
continue_with() {
    # The queue that the job was submitted to: one that it was routed to may take no jobs from users.
    local option value resource script=${JOB_SCRIPT:-$0}
    local options=(-N "$PBS_JOBNAME" -q "${PBS_O_QUEUE:-$(attribute queue)}")
    if [[ ! -f $script ]]; then script=$scripts/pbs.sh; fi
    while read -r resource; do options+=(-l "$resource"); done < <(resources)
    for option in A:Account_Name P:project m:Mail_Points M:Mail_Users; do
        value=$(attribute "${option#*:}")
        if [[ -n $value && $value != _pbs_project_default ]]; then options+=("-${option%%:*}" "$value"); fi
    done
    value=$(attribute group_list)
    if [[ -n $value ]]; then options+=(-W "group_list=$value"); fi
    export JOB_RUN_DIR=$run_dir JOB_FAILURES=$1 JOB_SCRIPTS=$scripts
    qsub "${options[@]}" -v "$(variables)" "$script"
}

# ---- the ranks --------------------------------------------------------------------------------------------------------

check_first
# A little less than the walltime: time for starting, for the step in flight, and for one checkpoint.
hours=${JOB_HOURS:-$(attribute Resource_List.walltime |
    awk -F: '{ s = 3600 * $1 + 60 * $2 + $3; printf "%.4f", (s > 720 ? s - 360 : s / 2) / 3600 }')}
if [[ -n $hours ]]; then
    if ((check_seconds > 0)); then hours=$(awk -v hours="$hours" -v spent="$check_seconds" 'BEGIN { h = hours - spent / 3600; printf "%.4f", (h > 0.01 ? h : 0.01) }'); fi
    # A run.max_hours of the user's that ends earlier stays.
    if awk -v hours="$hours" -v configured="$max_hours" 'BEGIN { exit !(configured + 0 == 0 || configured + 0 > hours + 0) }'; then train+=(--run.max_hours="$hours"); fi
elif awk -v configured="$max_hours" 'BEGIN { exit configured + 0 != 0 }'; then
    echo "the walltime is not known: the run will not save before it; set JOB_HOURS" >&2
fi
"${launch[@]}" "${train[@]}"
finish $? time # a stop with status 75 is by run.max_hours: PBS tells nobody of a preemption
