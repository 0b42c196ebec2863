#!/bin/bash
# Slurm: trains in as many jobs as it takes. From the folder with build/ and input/:
#
#   JOB_SITE=jobscripts/sites/NAME.env sbatch jobscripts/slurm.sh input/llama3-8b.ini [--section.key=value ...]
#
# Ahead of the walltime the ranks save and stop with status 75; the job then goes back into the queue and continues.
# Settings of the machine (modules, launcher, network) are in the site file, see jobscripts/sites/example.env.

#SBATCH --job-name=llampi
#SBATCH --nodes=2
# One rank per GPU; on CPUs one per socket or NUMA domain, with its cores as threads.
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
##SBATCH --gpus-per-node=2
#SBATCH --time=04:00:00
# To this shell, which passes it on: time for the step in flight and for one checkpoint. Slurm may be a minute early.
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -uo pipefail
cd "$SLURM_SUBMIT_DIR" || exit 2

if (($# == 0)); then
    echo "usage: sbatch jobscripts/slurm.sh CONFIG.ini [--section.key=value ...]" >&2
    exit 2
fi
if [[ -n ${JOB_SITE:-} ]]; then
    # shellcheck source=jobscripts/sites/example.env
    source "$JOB_SITE" || exit 2
fi
llampi=${llampi:-build/llampi}
# When one rank has ended, the others have 30 seconds: enough to leave with status 75 together, and the end of a job
# whose rank died. --kill-on-bad-exit=1 would kill ranks that leave a little later, and the status would not be 75.
if [[ -z ${launch+set} ]]; then launch=(srun --mpi=pmix --kill-on-bad-exit=0 --wait=30); fi

# One folder for all jobs of this run.
run_dir=${JOB_RUN_DIR:-runs/$SLURM_JOB_NAME}
newest_checkpoint() {
    local files=("$run_dir"/checkpoints/step-*.h5)
    echo "${files[-1]}"
}

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=$OMP_NUM_THREADS # srun no longer takes it from the job by itself

before=$(newest_checkpoint)
"${launch[@]}" "$llampi" train --config "$1" --run.dir="$run_dir" "${@:2}" &
ranks=$!
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
    echo "saved in $run_dir; back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
