#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Slurm: trains in as many jobs as it takes. From the folder with build/ and input/:
#
#   JOB_SITE=jobscripts/sites/NAME.env sbatch jobscripts/slurm.sh input/llama3-8b.ini [--section.key=value ...]
#
# Ahead of the walltime the ranks save and stop with status 75; the job then goes back into the queue and continues.
# A job that fails (a lost node, a crash, the watchdog) goes back as well, a few times. To end it early with everything
# saved: touch RUN_DIR/stop. All of this, and the variables JOB_*: docs/failures.md, "Under a scheduler".
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
interrupted=no
trap 'interrupted=yes' USR1 # until the ranks are there to be told
cd "$SLURM_SUBMIT_DIR" || exit 2

if (($# == 0)); then
    echo "usage: sbatch jobscripts/slurm.sh CONFIG.ini [--section.key=value ...]" >&2
    exit 2
fi
alone=()
if [[ -n ${JOB_SITE:-} ]]; then
    # shellcheck source=jobscripts/sites/example.env
    source "$JOB_SITE" || exit 2
fi
llampi=${llampi:-build/llampi}
# When one rank has ended, the others have 30 seconds: enough to leave with status 75 together, and the end of a job
# whose rank died. --kill-on-bad-exit=1 would kill ranks that leave a little later, and the status would not be 75.
if [[ -z ${launch+set} ]]; then launch=(srun --mpi=pmix --kill-on-bad-exit=0 --wait=30); fi

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=$OMP_NUM_THREADS # srun no longer takes it from the job by itself
# Where the launcher is mpirun: a network link that is cut ends the job within seconds (Open MPI 4).
export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-5}
export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-2}
export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-3}

# One folder for all links of this chain: JOB_RUN_DIR, else run.dir as given to llampi, else runs/NAME. The tasks of a
# job array get one each.
train=("$llampi" train --config "$@")
run_dir=${JOB_RUN_DIR:-} named=
if [[ -z $run_dir ]]; then
    settings=$(${alone[@]+"${alone[@]}"} "${train[@]}" --print-config) || exit
    named=$(sed -n '/^\[run\]$/,/^\[/s/^dir = //p' <<<"$settings")
    run_dir=${named:-runs/$SLURM_JOB_NAME}${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}
fi
if [[ $run_dir != "$named" ]]; then train+=(--run.dir="$run_dir"); fi

newest_checkpoint() {
    local files=("$run_dir"/checkpoints/step-*.h5)
    echo "${files[-1]}"
}

job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
may_requeue() { [[ $(scontrol show job "$job") != *" Requeue=0 "* ]]; }
refuse_to_requeue() { echo "this job may not go back into the queue (--no-requeue): submit it again to continue" >&2; }

before=$(newest_checkpoint)
rm -f "$run_dir/stopped"
"${launch[@]}" "${train[@]}" &
ranks=$!
trap 'interrupted=yes; kill -USR1 $ranks' USR1
if [[ $interrupted == yes ]]; then kill -USR1 $ranks; fi
while :; do
    interrupted=no
    wait $ranks
    status=$?
    if [[ $interrupted == no ]]; then break; fi # else it was the signal that ended `wait`, not the ranks
done
trap '' USR1

# How often this job has failed since its newest checkpoint, for the links after it.
failures_file=$run_dir/failures failures=0
if [[ -e $failures_file ]]; then
    read -r failed_job failures <"$failures_file"
    rm -f "$failures_file"
    if [[ $failed_job != "$job" || $(newest_checkpoint) != "$before" ]]; then failures=0; fi
fi

case $status in
0 | 2 | 126 | 127) exit "$status" ;; # done; a mistake in the input; no such program
esac
if [[ -e $run_dir/stopped || -e $run_dir/stop ]]; then
    echo "stopped by the file $run_dir/stop; not submitted again" >&2
    exit "$status"
fi
if ((status == 75)); then
    if [[ $(newest_checkpoint) == "$before" ]]; then
        echo "stopped early without a new checkpoint in $run_dir (more time per job or more room is needed: see above); not submitted again" >&2
        exit 1
    fi
    may_requeue || { refuse_to_requeue; exit 75; }
    echo "saved in $run_dir; back into the queue"
    scontrol requeue "$job" || exit 75
    exit 0
fi
if ((failures >= ${JOB_RETRIES:-3})); then
    echo "failed with status $status, $failures retries made since the newest checkpoint; not submitted again" >&2
    exit "$status"
fi
may_requeue || { refuse_to_requeue; exit "$status"; }
mkdir -p "$run_dir" && echo "$job $((failures + 1))" >"$failures_file" || exit "$status"
echo "failed with status $status; back into the queue for retry $((failures + 1)) of ${JOB_RETRIES:-3}" >&2
scontrol requeue "$job" || rm -f "$failures_file"
exit "$status"
