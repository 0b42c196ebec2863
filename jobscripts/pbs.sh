#!/bin/bash
# PBS: trains in as many jobs as it takes. From the folder with build/ and input/:
#
#   qsub -v JOB_CONFIG=input/llama3-8b.ini,JOB_SITE=jobscripts/sites/NAME.env jobscripts/pbs.sh
#
# At the walltime PBS gives a job only seconds. The program therefore watches the time itself: before JOB_HOURS have
# passed it saves and stops with status 75, and this script submits itself again.
# Settings of the machine (modules, launcher, network) are in the site file, see jobscripts/sites/example.env.

#PBS -N llampi
# mpiprocs: one rank per GPU; on CPUs one per socket or NUMA domain, with ompthreads cores each.
#PBS -l select=2:ncpus=16:mpiprocs=2:ompthreads=8
#PBS -l walltime=04:00:00
#PBS -r y
#PBS -j oe

set -uo pipefail
cd "$PBS_O_WORKDIR" || exit 2

# A little less than the walltime above: time for starting, for the step in flight, and for one checkpoint.
hours=${JOB_HOURS:-3.9}
script=${JOB_SCRIPT:-jobscripts/pbs.sh}

if [[ -z ${JOB_CONFIG:-} ]]; then
    echo "usage: qsub -v JOB_CONFIG=FILE.ini jobscripts/pbs.sh" >&2
    exit 2
fi
if [[ -n ${JOB_SITE:-} ]]; then
    # shellcheck source=jobscripts/sites/example.env
    source "$JOB_SITE" || exit 2
fi
llampi=${llampi:-build/llampi}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # PBS sets it from ompthreads
if [[ -z ${launch+set} ]]; then
    # -n and the node file, because an mpirun that was built without PBS would start one rank on this node
    launch=(mpirun -n "$(wc -l <"$PBS_NODEFILE")" --hostfile "$PBS_NODEFILE" --bind-to none)
    launch+=(-x OMP_NUM_THREADS ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH})
fi

# One folder for all jobs of this run.
run_dir=${JOB_RUN_DIR:-runs/$PBS_JOBNAME}
newest_checkpoint() {
    local files=("$run_dir"/checkpoints/step-*.h5)
    echo "${files[-1]}"
}

before=$(newest_checkpoint)
"${launch[@]}" "$llampi" train --config "$JOB_CONFIG" --run.dir="$run_dir" --run.max_hours="$hours" &
ranks=$!
# `qsig -s USR1 JOB` stops a job early, saved; mpirun passes the signal to all ranks.
trap 'interrupted=yes; kill -USR1 $ranks' USR1
while :; do
    interrupted=no
    wait $ranks
    status=$?
    if [[ $interrupted == no ]]; then break; fi # else it was the signal that ended `wait`, not the ranks
done

if ((status == 75)); then
    if [[ $(newest_checkpoint) == "$before" ]]; then
        echo "stopped early without a new checkpoint: more time per job is needed; not submitted again" >&2
        exit 1
    fi
    echo "saved in $run_dir; submitting the next job"
    # Where nodes may not submit: ssh to a login node, or a job chain with `qsub -W depend=afterany:...`.
    variables=JOB_CONFIG,JOB_RUN_DIR=$run_dir,JOB_HOURS=$hours,JOB_SCRIPT=$script
    if [[ -n ${JOB_SITE:-} ]]; then variables+=,JOB_SITE; fi
    qsub -N "$PBS_JOBNAME" -v "$variables" "$script"
fi
exit "$status"
