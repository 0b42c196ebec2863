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
# whose login shell it kills.) All of this, and the variables JOB_*: docs/failures.md, "Under a scheduler".
# Settings of the machine (modules, launcher, network) are in the site file, see jobscripts/sites/example.env.

#PBS -N llampi
# mpiprocs: one rank per GPU; on CPUs one per socket or NUMA domain, with ompthreads cores each.
#PBS -l select=2:ncpus=16:mpiprocs=2:ompthreads=8
#PBS -l walltime=04:00:00
#PBS -r y
#PBS -j oe

set -uo pipefail
cd "$PBS_O_WORKDIR" || exit 2

if [[ -z ${JOB_CONFIG:-} ]]; then
    echo "usage: qsub -v JOB_CONFIG=FILE.ini jobscripts/pbs.sh" >&2
    exit 2
fi
alone=()
if [[ -n ${JOB_SITE:-} ]]; then
    # shellcheck source=jobscripts/sites/example.env
    source "$JOB_SITE" || exit 2
fi
llampi=${llampi:-build/llampi}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # PBS sets it from ompthreads
# A network link that is cut ends the job within seconds instead of holding it to its walltime (Open MPI 4).
export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-5}
export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-2}
export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-3}
if [[ -z ${launch+set} ]]; then
    # For an mpirun that was built without PBS. A host has as many ranks as lines in the node file: without a number it
    # would get as many as it has cores.
    hosts=$(awk '!($1 in n) { host[++hosts] = $1 } { ++n[$1] }
                 END { for (i = 1; i <= hosts; ++i) printf "%s%s:%d", (i > 1 ? "," : ""), host[i], n[host[i]] }' "$PBS_NODEFILE")
    launch=(mpirun -n "$(wc -l <"$PBS_NODEFILE")" --host "$hosts" --bind-to none)
    launch+=(-x OMP_NUM_THREADS ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH})
fi

# This job as PBS has it, one attribute a line.
attributes=$(qstat -f "$PBS_JOBID" | sed -e ':join' -e 'N' -e '$!bjoin' -e 's/\n\t//g')
attribute() { sed -n "s/^ *$1 = //p" <<<"$attributes"; }
if [[ -z $attributes ]]; then
    echo "qstat -f $PBS_JOBID says nothing: this job will not be followed by another with the same resources" >&2
fi

# A little less than the walltime: time for starting, for the step in flight, and for one checkpoint.
hours=${JOB_HOURS:-$(attribute Resource_List.walltime |
    awk -F: '{ s = 3600 * $1 + 60 * $2 + $3; printf "%.4f", (s > 720 ? s - 360 : s / 2) / 3600 }')}

# One folder for all jobs of this chain: JOB_RUN_DIR, else run.dir as given to llampi, else runs/NAME. The subjobs of a
# job array get one each.
set -f
# shellcheck disable=SC2086 # one word for each argument
set -- "$llampi" train --config "$JOB_CONFIG" ${JOB_ARGS:-}
set +f
train=("$@")
run_dir=${JOB_RUN_DIR:-} named=
if [[ -z $run_dir ]]; then
    settings=$(${alone[@]+"${alone[@]}"} "${train[@]}" --print-config) || exit
    named=$(sed -n '/^\[run\]$/,/^\[/s/^dir = //p' <<<"$settings")
    run_dir=${named:-runs/$PBS_JOBNAME}${PBS_ARRAY_INDEX:+-$PBS_ARRAY_INDEX}
fi
if [[ $run_dir != "$named" ]]; then train+=(--run.dir="$run_dir"); fi
if [[ -n $hours ]]; then train+=(--run.max_hours="$hours"); fi

newest_checkpoint() {
    local files=("$run_dir"/checkpoints/step-*.h5)
    echo "${files[-1]}"
}

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
        attribute Variable_List | tr ',' '\n' | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' | grep -vE '^(PBS|JOB|LLAMPI)_'
        if [[ -n ${PBS_ARRAY_INDEX:-} ]]; then echo PBS_ARRAY_INDEX; fi
    } | sort -u | comm -12 - <(compgen -e | sort -u) | paste -sd, -
}

# Submits the job that continues this one.
submit_next() {
    if [[ -z $attributes ]]; then
        echo "not submitted again, for its resources are not known: submit it by hand" >&2
        return 1
    fi
    # The queue that the job was submitted to: one that it was routed to may take no jobs from users.
    local option value resource script=${JOB_SCRIPT:-$0}
    local options=(-N "$PBS_JOBNAME" -q "${PBS_O_QUEUE:-$(attribute queue)}")
    if [[ ! -f $script ]]; then script=jobscripts/pbs.sh; fi
    while read -r resource; do options+=(-l "$resource"); done < <(resources)
    for option in A:Account_Name P:project m:Mail_Points M:Mail_Users; do
        value=$(attribute "${option#*:}")
        if [[ -n $value && $value != _pbs_project_default ]]; then options+=("-${option%%:*}" "$value"); fi
    done
    value=$(attribute group_list)
    if [[ -n $value ]]; then options+=(-W "group_list=$value"); fi
    export JOB_RUN_DIR=$run_dir
    qsub "${options[@]}" -v "$(variables)" "$script"
}

before=$(newest_checkpoint)
rm -f "$run_dir/stopped"
"${launch[@]}" "${train[@]}"
status=$?

case $status in
0 | 2 | 126 | 127) exit "$status" ;; # done; a mistake in the input; no such program
esac
if [[ -e $run_dir/stopped || -e $run_dir/stop ]]; then
    echo "stopped by the file $run_dir/stop; not submitted again" >&2
    exit "$status"
fi
# How often jobs of this chain have failed since the newest checkpoint.
failures=${JOB_FAILURES:-0}
if [[ $(newest_checkpoint) != "$before" ]]; then failures=0; fi
if ((status == 75)); then
    if [[ $(newest_checkpoint) == "$before" ]]; then
        echo "stopped early without a new checkpoint in $run_dir (more time per job or more room is needed: see above); not submitted again" >&2
        exit 1
    fi
    echo "saved in $run_dir; submitting the next job"
    export JOB_FAILURES=0
    submit_next || exit 75
    exit 0
fi
if ((failures >= ${JOB_RETRIES:-3})); then
    echo "failed with status $status, $failures retries made since the newest checkpoint; not submitted again" >&2
    exit "$status"
fi
echo "failed with status $status; submitting the next job for retry $((failures + 1)) of ${JOB_RETRIES:-3}" >&2
export JOB_FAILURES=$((failures + 1))
submit_next
exit "$status"
