#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slurm_test.sh SOURCE LLAMPI: what jobscripts/slurm.sh does with each way in which its ranks can end.
set -uo pipefail
# shellcheck source=tests/system/jobs/jobs.sh
source "$1/tests/system/jobs/jobs.sh"
prepare "$1" "$2"

stand_in srun <<'SH'
echo "${SLURM_EXPORT_ENV-all}" >"$FOLDER/environment_of_ranks"
while [[ $1 == --* ]]; do shift; done
exec "$@"
SH
stand_in scontrol <<'SH'
if [[ " $* " == *" --oneliner "* ]]; then sed 's/^ *//' "$FOLDER/shown" | paste -sd ' '; exit; fi
for word; do if [[ $word == show ]]; then cat "$FOLDER/shown"; exit; fi; done
exit "${REQUEUE_STATUS:-0}"
SH

script_of_submission="$folder/else where/slurm.sh"
shown() { # REQUEUE: what scontrol says of the job
    printf '%s\n' "JobId=7 JobName=mine" "   Requeue=$1 Restarts=0 BatchFlag=1" "   TimeLimit=1-02:00:00 OverSubscribe=NO" \
        "   ExcNodeList=(null) Features=a100&ib" "   TresPerNode=gres/gpu:a100:3,gres/nvme:1" "   Command=$script_of_submission in/put.ini --data.train=a b/c" >shown
}
shown 1

# job [NAME=VALUE...] -- ARGUMENT...
job() {
    local variables=()
    while [[ $1 != -- ]]; do variables+=("$1"); shift; done
    shift
    : >calls
    env SLURM_SUBMIT_DIR="$folder" SLURM_JOB_NAME=mine SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=3 "${variables[@]}" \
        bash "${script:-jobscripts/slurm.sh}" "$@" >log 2>&1
    status=$?
    log=$(<log)
}
fresh() { rm -rf runs mine; }

# The end, and a user's mistake.
will_end "0 100" 2 2
job -- input.ini --optimizer.lr=1e-3
expect "status of a run at its end" $status 0
expect "the command of the ranks" "$(last llampi)" "llampi train --config input.ini --optimizer.lr=1e-3 --run.dir=runs/mine"
expect "a finished job" "$(count "scontrol requeue")" 0
job -- input.ini
expect "status of a mistake" $status 2
job -- missing.ini
expect "status without a configuration" $status 2
expect "ranks without a configuration" "$(count srun)" 0
expect "a mistake that ranks find" "$(count "scontrol requeue")" 0
will_end 2
job -- input.ini
expect "what is said of a mistake" "$status $log" "2 ended with status 2: invalid input, or no such program (see above); not submitted again"

# A check before the run, which only the first job of a chain makes.
fresh
will_end 0 "75 10" "0 100" 1
job JOB_CHECK=1 -- input.ini --optimizer.lr=1e-3
expect "a check, and the run" "$status $(grep '^llampi .*lr=1e-3 --run.dir' calls | tr '\n' ' ')" \
    "0 llampi check --config input.ini --optimizer.lr=1e-3 --run.dir=runs/mine llampi train --config input.ini --optimizer.lr=1e-3 --run.dir=runs/mine "
job JOB_CHECK=1 -- input.ini
expect "a later job of the chain" "$status $(grep -c '^llampi check' calls)" "0 0"
fresh
job JOB_CHECK=1 -- input.ini
expect "a check that fails" "$status $(count srun) $(count "scontrol requeue") $log" "1 1 0 llampi check ended with status 1: the run was not started*"
fresh
will_end 139
job JOB_CHECK=1 -- input.ini
expect "a check that crashes" "$status $(count srun) $(last scontrol) $log" \
    "139 1 scontrol requeue 7 llampi check ended with status 139, before the run was started*back into the queue for retry 1 of 3"
fresh

will_end 0
job JOB_CHECK=1 SIGNAL=1 -- input.ini
expect "no time for the run" "$status $(grep -c '^llampi train --config input.ini --run.dir' calls) $(count "scontrol requeue") $log" \
    "1 0 0 *stopped early without a new checkpoint*"

# sbatch --export=NONE, which srun would take for its own; names of the site file that the shell has that submitted.
fresh
will_end "0 100"
job SLURM_EXPORT_ENV=NONE launch=wrong llampi=wrong -- input.ini
expect "the environment of the ranks" "$status $(<environment_of_ranks)" "0 all"
expect "launch and llampi of the environment" "$(last srun)" "srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 build/llampi train *"

# Older than the newest, which is damaged, but new.
fresh
mkdir -p runs/mine/checkpoints
touch runs/mine/checkpoints/step-00000400.h5
will_end "75 350 300"
job -- input.ini
expect "a new checkpoint that is not the newest" "$status $(count "scontrol requeue")" "0 1"

# A link of a chain.
fresh
will_end "75 10" "75 20" 75
for step in 10 20; do
    job -- input.ini
    expect "status of a link at $step" $status 0
    expect "requeue at $step" "$(last scontrol)" "scontrol requeue 7"
done
job -- input.ini
expect "status without progress" $status 1
expect "the log without progress" "$log" "*without a new checkpoint in runs/mine (more time per job or more room*"
expect "a job without progress" "$(count "scontrol requeue")" 0

# Stopped by hand, at once or while the state cannot be saved.
fresh
mkdir -p runs/mine
will_end "75 10" "75 20" "137"
touch runs/mine/stop
job -- input.ini
expect "status of a stop by hand" $status 75
expect "the log of a stop by hand" "$log" "*stopped by the file runs/mine/stop; not submitted again*"
expect "a stop by hand" "$(count "scontrol requeue")" 0
job -- input.ini
expect "the job after a stop by hand" "$(last scontrol)" "scontrol requeue 7"
touch runs/mine/stop
job -- input.ini
expect "a failure after a stop by hand" "$status $(count "scontrol requeue")" "137 0"

# Failures: three in a row without a new checkpoint, unless JOB_RETRIES says otherwise.
fresh
will_end 139 1 "137 10" 1 1 1 1
for _ in 1 2 3; do
    job -- input.ini
    expect "requeue after a failure" "$(last scontrol)" "scontrol requeue 7"
done
expect "the log of a failure after progress" "$log" "*status 137*retry 1 of 3*"
for retry in 2 3; do
    job -- input.ini
    expect "the log of a failure" "$log" "*status 1;*retry $retry of 3*"
done
job -- input.ini
expect "after the last retry" "$status $(count "scontrol requeue")" "1 0"
expect "the log after the last retry" "$log" "*3 retries made*not submitted again*"
expect "what is left in the run folder" "$(cd runs/mine && echo ./*)" "./checkpoints ./history.jsonl"
will_end 1 1 1
job JOB_RETRIES=0 -- input.ini
expect "without retries" "$status $(count "scontrol requeue")" "1 0"
job JOB_RETRIES=1 -- input.ini
expect "one retry" "$(last scontrol)" "scontrol requeue 7"
job JOB_RETRIES=1 SLURM_JOB_ID=8 -- input.ini
expect "retries of another job do not count" "$(last scontrol)" "scontrol requeue 8"

# A loss that is not finite is retried once, as it may be a fault of the machine; a second time at the same step it is not.
fresh
will_end not_finite not_finite "137 20"
job -- input.ini
expect "the first loss that is not finite" "$(last scontrol) $log" "scontrol requeue 7 *retry 1 of 3*"
job -- input.ini
expect "the second one at the same step" "$status $(count "scontrol requeue") $log" "1 0 *for the second time*not submitted again*"
job -- input.ini --optimizer.lr=1e-4
expect "another failure after them" "$(last scontrol) $log" "scontrol requeue 7 *status 137*retry 1 of 3*"

# Not a job.
log=$(env -u SLURM_JOB_ID bash jobscripts/slurm.sh input.ini 2>&1)
expect "the script without Slurm" "$? $log" "2 this is a script for Slurm: submit it with sbatch slurm.sh"
job JOB_CHECK=yes -- input.ini
expect "a JOB_CHECK that is none" "$status $log" "2 JOB_CHECK=yes: use 1*"

# Weights alone do not let the next job go on from where this one was, however often they are written.
fresh
will_end "75 151" "137 158 151 weights" "137 160 151 weights" "137 159 151 weights" "137 158 151 weights"
job -- input.ini
for retry in 1 2 3; do
    job -- input.ini
    expect "the log of a failure after weights" "$log" "*status 137;*retry $retry of 3*"
done
job -- input.ini
expect "weights alone are no progress" "$status $(count "scontrol requeue") $log" "137 0 *3 retries made*"

# Told to stop before the first step, by a preemption.
fresh
will_end "75 early" "75 early" "75 10"
for retry in 1 2; do
    job -- input.ini
    expect "a stop before the first step" "$status $(last scontrol) $log" "1 scontrol requeue 7 stopped before the first step*retry $retry of 3*"
done
job -- input.ini
expect "the job after stops before the first step" "$status $(last scontrol)" "0 scontrol requeue 7"

# --no-requeue, and a controller that refuses.
fresh
will_end "75 10" 1 "75 20"
shown 0
job -- input.ini
expect "saved, --no-requeue" "$status $(count "scontrol requeue")" "75 0"
expect "the log with --no-requeue" "$log" "*--no-requeue): submit it again to continue*"
job -- input.ini
expect "failed, --no-requeue" "$status $(count "scontrol requeue")" "1 0"
shown 1
job REQUEUE_STATUS=1 -- input.ini
expect "refused by the controller" "$status $log" "75 saved in runs/mine; *the next job could not be put into the queue*"
will_end 1
job REQUEUE_STATUS=1 -- input.ini
expect "failed, and refused by the controller" "$status $log" "1 *retry 1 of 3*the next job could not be put into the queue*"

# The folder: of the arguments, the environment, the file, JOB_RUN_DIR; one for each task of an array.
printf '[run]\ndir = mine/by file # not llampi'"'"'s\n' >>input.ini
will_end "0 1" "0 1" "0 1" "0 1" "75 10" 0 "75 10"
job -- input.ini
expect "run.dir of the file" "$(last llampi)" "llampi train --config input.ini"
job -- input.ini --run.dir=mine/argument
expect "run.dir of an argument" "$(last llampi)" "llampi train --config input.ini --run.dir=mine/argument"
job LLAMPI_RUN_DIR=mine/variable -- input.ini
expect "run.dir of the environment" "$(last llampi)" "llampi train --config input.ini"
job JOB_RUN_DIR=mine/job -- input.ini
expect "JOB_RUN_DIR" "$(last llampi)" "llampi train --config input.ini --run.dir=mine/job"
expect "folders" "$(echo mine/*)" "mine/argument mine/by file mine/job mine/variable"
job SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=3 -- input.ini
expect "a task with the file's run.dir" "$(last llampi)" "* --run.dir=mine/by file-3"
expect "requeue of a task" "$(last scontrol)" "scontrol requeue 5_3"
job SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=3 JOB_RUN_DIR=mine/job -- input.ini
expect "tasks with one folder" "$(last llampi) $log" "* --run.dir=mine/job warning: all tasks of this array use one run folder, JOB_RUN_DIR=mine/job; *"
job SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=3 -- input.ini --run.dir=mine/array/
expect "a task with a folder that ends in /" "$(last llampi)" "* --run.dir=mine/array-3"
sed -i /dir/d input.ini
job SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=3 -- input.ini
expect "a task" "$(last llampi)" "* --run.dir=runs/mine-3"

# The site file's program runs in a container; keepalive, of which the user's values win.
cat >site.env <<'SH'
alone=(inside) launch=(inside)
SH
stand_in inside <<'SH'
env | grep -E '^OMPI_MCA_oob_tcp' | sort | sed 's/.*_//' | tr '\n' ' ' >"$FOLDER/keepalive"
exec "$@"
SH
will_end "0 10"
job JOB_SITE=site.env OMPI_MCA_oob_tcp_keepalive_intvl=4 -- input.ini
expect "calls in a container" "$(count inside)" 2
expect "keepalive" "$(<keepalive)" "intvl=4 probes=3 time=5 "

# Threads: the site file's, else one for each CPU of the task, whatever the shell had that submitted. The task keeps its CPUs.
stand_in threads <<'SH'
echo "$OMP_NUM_THREADS${SRUN_CPUS_PER_TASK:+ of $SRUN_CPUS_PER_TASK}" >"$FOLDER/threads"
exec "$@"
SH
echo 'launch=(threads)' >site.env
will_end "0 10" "0 10"
job JOB_SITE=site.env OMP_NUM_THREADS=7 -- input.ini
expect "threads of a task" "$(<threads)" "3 of 3"
echo 'export OMP_NUM_THREADS=2' >>site.env
job JOB_SITE=site.env OMP_NUM_THREADS=7 -- input.ini
expect "threads of the site file" "$(<threads)" "2 of 3"
stand_in mpirun <<'SH'
while [[ $1 == -* || $1 == none ]]; do shift; done
exec threads "$@"
SH
sed -n 's/^# \(launch=(mpirun.*\)/\1/p' "$source_dir/jobscripts/sites/example.env" >site.env
job JOB_SITE=site.env -- input.ini
expect "the mpirun of example.env, whose cores may be fewer than CPUs" "$(last mpirun)" "mpirun --bind-to none build/llampi train *"
expect "daemons of mpirun, which have the CPUs of a node" "$(<threads)" 3
rm bin/mpirun

# An image, and modules, which this shell has not heard of; a rank for each GPU; a site file by its name.
stand_in apptainer <<'SH'
while [[ $1 != */llampi.sif ]]; do shift; done
shift
PATH=$FOLDER/build:$PATH exec "$@"
SH
mkdir -p images modules/init jobscripts/sites
touch images/llampi.sif
cat >modules/init/bash <<'SH'
module() { echo "module $*" >>"$FOLDER/calls"; [[ $3 != none ]]; }
SH
cat >jobscripts/sites/ours.env <<'SH'
echo "loads $a_variable_that_is_not_set"
SH
will_end "0 10" "0 10"
job MODULESHOME=modules JOB_MODULES="gcc apptainer" JOB_IMAGE=images/llampi.sif JOB_SITE=ours SLURM_GPUS_ON_NODE=8 SLURM_NTASKS_PER_NODE=2 -- input.ini
expect "modules" "$(last module)" "module load gcc apptainer"
expect "calls of a container" "$(count apptainer)" 2
expect "ranks in a container" "$(last srun)" "srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 $folder/bin/apptainer exec --bind $folder*images/llampi.sif llampi train *"
expect "the log of a container" "$log" "loads *warning: a node of this job has 8 GPUs and 2 ranks*: 6 will be idle*"
job SLURM_GPUS_ON_NODE=2 SLURM_NTASKS_PER_NODE=2 -- input.ini
expect "no idle GPUs" "$log" ""
while read -r setting message; do
    job MODULESHOME=modules "$setting" -- input.ini
    expect "$setting" "$status $(count srun) $log" "2 0 *$message*"
done <<'END'
JOB_IMAGE=none.sif JOB_IMAGE: there is no image none.sif, seen from
JOB_SITE=none JOB_SITE: cannot read *jobscripts/sites/none.env (JOB_SITE=none, seen from
JOB_RETRIES=often JOB_RETRIES=often: use a number of retries
JOB_RETRIES=08 JOB_RETRIES=08: use a number of retries
JOB_CHAIN=never JOB_CHAIN=never: it is requeue, submit or none
END
job MODULESHOME=modules JOB_MODULES="gcc none" -- input.ini
expect "a module that is missing" "$status $log" "2 cannot load the modules gcc none; *"

# A chain without requeue: the job submits the next one, with what it was submitted with, or does nothing for a chain that is there already.
# Of --export, the command line counts more than the script's #SBATCH lines and SBATCH_EXPORT.
stand_in sbatch <<'SH'
compgen -e | grep -E '^(SLURM|SRUN)' >"$FOLDER/inherited"
echo "$JOB_FAILURES $JOB_RUN_DIR $JOB_SCRIPTS" >"$FOLDER/submitted"
exit "${SBATCH_STATUS:-0}"
SH
fresh
will_end "75 10" "75 20" 139 1 "75 30" "75 40" 1
submit=(JOB_CHAIN=submit SLURM_JOB_NUM_NODES=2 SLURM_JOB_PARTITION=long SLURM_JOB_ACCOUNT=abc SLURM_NTASKS_PER_NODE=4 SLURM_NTASKS=8 SLURM_MEM_PER_NODE=4000 SLURM_CONF=c)
shown 0
job "${submit[@]}" -- input.ini "--run.seed=1"
options="--export=ALL --dependency=afterany:7 --chdir=$folder --job-name=mine --nodes=2 --account=abc --partition=long --ntasks=8 --ntasks-per-node=4 --cpus-per-task=3 --mem=4000"
expect "the next job" "$status $(last sbatch)" \
    "0 sbatch $options --time=1-02:00:00 --constraint=a100&ib --gres=gpu:a100:3,nvme:1 --exclusive --no-requeue jobscripts/slurm.sh input.ini --run.seed=1"
expect "what it inherits" "$(<inherited) $(<submitted)" "SLURM_CONF 0 runs/mine $folder/jobscripts"
job "${submit[@]}" SBATCH_STATUS=1 -- input.ini
expect "sbatch that fails" "$status" 75
job "${submit[@]}" JOB_FAILURES=2 SLURM_GPUS_PER_NODE=3 SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=3 JOB_RUN_DIR=runs/mine -- input.ini
expect "the next task after a failure" "$status $(last sbatch) $(<submitted)" \
    "139 * --dependency=afterany:5_3 * --gpus-per-node=3 * --array=3 --time=1-02:00:00 --constraint=a100&ib --gres=nvme:1 --exclusive --no-requeue * 3 runs/mine *"
job "${submit[@]}" JOB_FAILURES=3 -- input.ini
expect "the last failure of a chain" "$status $(count sbatch)" "1 0"
expect "no files of a chain" "$(cd runs/mine && echo ./*)" "./checkpoints ./history.jsonl"
for ending in 75 75 1; do
    job JOB_CHAIN=none -- input.ini
    expect "JOB_CHAIN=none" "$status $(count sbatch) $(count "scontrol requeue") $log" "$ending 0 0 *JOB_CHAIN=none: not submitted again*"
done

# The signal of Slurm goes to the ranks, whose status is the job's.
fresh
shown 1
cp bin/srun srun_of_ranks
cat >bin/srun <<'SH'
#!/bin/bash
trap 'mkdir -p runs/mine/checkpoints; touch runs/mine/checkpoints/step-00000010.h5
printf "{\"event\":\"%s\",\"step\":%s,\"file\":\"checkpoints/x.h5\"}\\n" start 0 checkpoint 10 >>runs/mine/history.jsonl; exit 75' USR1
kill -USR1 $PPID # at once, or before the shell has told its ranks
while :; do sleep 0.05; done
SH
job -- input.ini
expect "a signal of Slurm" "$status $(last scontrol) $log" "0 scontrol requeue 7 *time is up came after * s: *--time=5 --signal=B:USR1@60*saved in *"
mv srun_of_ranks bin/srun

# Slurm's copy of the script finds the shared file: where the original was, in a folder of its own, with the llampi of the PATH; or says so.
mkdir -p spool prefix/bin prefix/share/llampi
mv jobscripts/slurm.sh spool/slurm_script
mv jobscripts "else where"
script=spool/slurm_script
will_end "0 10" "0 10" "0 10"
job -- input.ini
expect "beside the original" "$status $log" "0 "
mv "else where" prefix/share/llampi/jobscripts
job -- input.ini
expect "no shared file" "$status $log" "2 there is no common.sh next to $folder/else and no jobscripts/common.sh in $folder: *JOB_SCRIPTS*"
job JOB_SCRIPTS=prefix/share/llampi/jobscripts -- input.ini
expect "JOB_SCRIPTS" "$status $log" "0 "
cp build/llampi prefix/bin/llampi
rm build/llampi
job PATH="$folder/prefix/bin:$PATH" -- input.ini
expect "an installed program" "$status $log $(last llampi)" "0  llampi train *"
expect "ranks of an installed program" "$(last srun)" "* --wait=30 $folder/prefix/share/llampi/jobscripts/../../../bin/llampi train *"
rm prefix/bin/llampi
job JOB_SCRIPTS=prefix/share/llampi/jobscripts -- input.ini
expect "no program" "$status $(count srun) $log" "2 0 there is no build/llampi in *"
finish
