#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pbs_test.sh SOURCE LLAMPI: what jobscripts/pbs.sh does with each way in which its ranks can end, and what the next job is submitted with.
set -uo pipefail
# shellcheck source=tests/system/jobs/jobs.sh
source "$1/tests/system/jobs/jobs.sh"
prepare "$1" "$2"

stand_in mpirun <<'SH'
while [[ $1 != */llampi ]]; do shift; done
echo "$OMP_NUM_THREADS" >"$FOLDER/threads"
exec "$@"
SH
# Keeps the environment, of which -v takes what it names.
stand_in qsub <<'SH'
env -0 | tr '\n\0' ' \n' | grep -E '^(JOB|LLAMPI|NCCL)_' | sort >"$FOLDER/submitted"
for script; do :; done
cp "$script" "$FOLDER/submitted_script"
if [[ ${QSUB_STATUS:-0} == 0 ]]; then echo 2.server; else echo "qsub: no" >&2; fi
exit "${QSUB_STATUS:-0}"
SH
# As PBS prints it: long lines are folded.
stand_in qstat <<'SH'
cat "$FOLDER/attributes"
SH
printf '%s\n' "Job Id: 1.server" "    Job_Name = mine" "    queue = long" "    Account_Name = abc-123" "    project = _pbs_project_default" \
    "    Resource_List.mpiprocs = 3" "    Resource_List.ncpus = 6" "    Resource_List.ngpus = 3" "    Resource_List.nodect = 2" "    Resource_List.nodes = 2:ppn=2" \
    "    Resource_List.filesystems = home:scratch" "    Resource_List.place = scatter:excl" \
    "    Resource_List.select = 1:ncpus=4:mpiprocs=2:ngpus=2+1:ncpus=2:mpiprocs=1:ng" "	pus=1:host=b" \
    "    Resource_List.walltime = 02:00:00" "    schedselect = 1:ncpus=4:mpiprocs=2:ngpus=2+1:ncpus=2:mpiprocs=1:ngpus=1:host" "	=b" \
    "    Variable_List = PBS_O_HOME=/home/me,PBS_O_WORKDIR=/home/me,NCCL_DEBUG=W" "	ARN,JOB_CONFIG=input.ini,LLAMPI_OPTIMIZER_NO_DECAY=a\\,b" >attributes
printf 'b\na\na\n' >nodes

job() {
    : >calls
    env PBS_O_WORKDIR="$folder" PBS_JOBNAME=mine PBS_JOBID=1.server PBS_NODEFILE="$folder/nodes" JOB_CONFIG=input.ini NCCL_DEBUG=WARN "$@" \
        bash "${script:-jobscripts/pbs.sh}" >log 2>&1
    status=$?
    log=$(<log)
}
fresh() { rm -rf runs submitted; }

# The end, and a user's mistake.
will_end "0 100" 2
job
expect "status of a run at its end" $status 0
expect "the command of the ranks" "$(last llampi)" "llampi train --config input.ini --run.dir=runs/mine --run.max_hours=1.9000"
expect "a finished job" "$(count qsub)" 0
job
expect "a mistake" "$status $(count qsub)" "2 0"

# Ranks on hosts, the first one first.
expect "ranks on hosts" "$(last mpirun)" "mpirun -n 3 --host b:1,a:2 --bind-to none *-x NCCL_DEBUG *-x OMP_NUM_THREADS * train *"

# What the site file sets goes to all nodes; the GPUs that PBS has given this one do not.
will_end 0
printf 'export APPTAINER_BIND=/scratch HDF5_USE_FILE_LOCKING=FALSE\n' >site.env
job JOB_SITE=site.env CUDA_VISIBLE_DEVICES=GPU-1 CUDA_DEVICE_ORDER=PCI_BUS_ID
for name in APPTAINER_BIND HDF5_USE_FILE_LOCKING CUDA_DEVICE_ORDER; do expect "$name on all nodes" "$(last mpirun)" "* -x $name *"; done
will_end 0 "75 early"
sed -i 's/NCCL_DEBUG=W$/APPTAINER_BIND=\/scratch,&/' attributes
job JOB_SITE=site.env APPTAINER_BIND=/scratch # the next job of a chain has it already
expect "a variable of an earlier job" "$(last mpirun)" "* -x APPTAINER_BIND *"
job CUDA_VISIBLE_DEVICES=GPU-1
expect "no time for the first step" "$status $(count qsub)" "1 0"
[[ $(last mpirun) != *CUDA_VISIBLE_DEVICES* ]] || expect "GPUs of the first node" "$(last mpirun)" "no CUDA_VISIBLE_DEVICES"
sed -i 's/APPTAINER_BIND=\/scratch,//' attributes
fresh

# Threads of a rank: PBS takes them from ompthreads, or gives each rank all CPUs of its node. The site file's stay.
will_end 0 0 0
job OMP_NUM_THREADS=4
expect "threads without ompthreads" "$(<threads)" 2
[[ $log != *warning:* ]] || expect "chunks whose ranks have the same" "$log" "no warning"
sed -i 's/select = 1:ncpus=4:/&ompthreads=1:/' attributes
job OMP_NUM_THREADS=1
expect "threads with ompthreads" "$(<threads)" 1
sed -i 's/ompthreads=1://' attributes
echo 'export OMP_NUM_THREADS=3' >site.env
job OMP_NUM_THREADS=4 JOB_SITE=site.env
expect "threads of the site file" "$(<threads)" 3

# A link of a chain: submitted as this job was.
fresh
will_end "75 10" "75 20" 75
job JOB_ARGS="--train.steps=50 --optimizer.lr=1e-3" LLAMPI_OPTIMIZER_NO_DECAY='a,b "c" d' JOB_HOURS=0.5
expect "status of a link" $status 0
expect "overrides" "$(last llampi)" "llampi train --config input.ini --train.steps=50 --optimizer.lr=1e-3 --run.dir=runs/mine --run.max_hours=0.5"
resources="-l filesystems=home:scratch -l place=scatter:excl -l select=1:ncpus=4:mpiprocs=2:ngpus=2+1:ncpus=2:mpiprocs=1:ngpus=1:host=b -l walltime=02:00:00"
variables=JOB_ARGS,JOB_CONFIG,JOB_FAILURES,JOB_HOURS,JOB_RUN_DIR,JOB_SCRIPTS,LLAMPI_OPTIMIZER_NO_DECAY,NCCL_DEBUG
expect "the next job" "$(last qsub)" "qsub -N mine -q long $resources -A abc-123 -v $variables jobscripts/pbs.sh"
expect "its variables" "$(tr '\n' ';' <submitted)" \
    "JOB_ARGS=--train.steps=50 --optimizer.lr=1e-3;JOB_CONFIG=input.ini;JOB_FAILURES=0;JOB_HOURS=0.5;JOB_RUN_DIR=runs/mine;JOB_SCRIPTS=$folder/jobscripts;LLAMPI_OPTIMIZER_NO_DECAY=a,b \"c\" d;NCCL_DEBUG=WARN;"
cmp -s submitted_script jobscripts/pbs.sh || expect "the next job's script" "another one" jobscripts/pbs.sh
job QSUB_STATUS=1 PBS_O_QUEUE=routing
expect "the queue of the submission" "$(last qsub)" "qsub -N mine -q routing *"
expect "qsub that fails" "$status $log" "75 *qsub: no*could not be put into the queue*"
job
expect "status without progress" "$status $(count qsub) $log" "1 0 *without a new checkpoint in runs/mine (more time per job or more room*"

# A run.max_hours of the configuration that ends earlier stays, also in a later job of the chain.
fresh
will_end 0 0 0 0
job JOB_ARGS=--run.max_hours=1.5 JOB_RUN_DIR=runs/mine
expect "an earlier run.max_hours" "$(last llampi)" "llampi train --config input.ini --run.max_hours=1.5 --run.dir=runs/mine"
job JOB_ARGS=--run.max_hours=3
expect "a later run.max_hours" "$(last llampi)" "* --run.max_hours=3 --run.dir=runs/mine --run.max_hours=1.9000"
job LLAMPI_RUN_MAX_HOURS=0.25 JOB_HOURS=0.5
expect "run.max_hours and JOB_HOURS" "$(last llampi)" "llampi train --config input.ini --run.dir=runs/mine"
job JOB_HOURS=0.5 JOB_ARGS=--run.max_hours=0
expect "no run.max_hours" "$(last llampi)" "* --run.max_hours=0.5"

# Stopped by hand.
fresh
mkdir -p runs/mine
touch runs/mine/stop
will_end "75 10" "75 20"
job
expect "a stop by hand" "$status $(count qsub) $log" "75 0 *stopped by the file runs/mine/stop; not submitted again*"
job
expect "the job after a stop by hand" "$status $(count qsub)" "0 1"

# Failures.
fresh
will_end 205 1 "1 10"
job
expect "a failure" "$status $(grep FAILURES submitted)" "205 JOB_FAILURES=1"
job JOB_FAILURES=3
expect "the last failure" "$status $(count qsub)" "1 0"
job JOB_FAILURES=3
expect "a failure after progress" "$status $(grep FAILURES submitted)" "1 JOB_FAILURES=1"
will_end 1
job JOB_RETRIES=0
expect "without retries" "$status $(count qsub)" "1 0"

# A chain that is there already; choices that PBS does not have; idle GPUs; an image.
fresh
will_end "75 10" 1
job JOB_CHAIN=none
expect "saved, JOB_CHAIN=none" "$status $(count qsub) $log" "75 0 *JOB_CHAIN=none: not submitted again*"
expect "every rank has a GPU" "$log" "saved in*"
sed -i 's/mpiprocs=2:ngpus=2/mpiprocs=2:ngpus=4/' attributes
job JOB_CHAIN=none
expect "failed, JOB_CHAIN=none" "$status $(count qsub) $log" "1 0 warning: a node of this job has 4 GPUs and 2 ranks*failed with status 1*"
sed -i 's/mpiprocs=2:ngpus=4/ngpus=4/' attributes # without mpiprocs PBS counts one rank
will_end 1
job JOB_CHAIN=none
expect "without mpiprocs" "$status $log" "1 warning: a rank has 2 or 4 CPUs, *
warning: a node of this job has 4 GPUs and 1 rank, and a rank uses one: 3 will be idle*"
expect "its threads" "$(<threads)" 4
sed -i 's/select = 1:ncpus=4:ngpus=4/select = 1:ncpus=4:mpiprocs=2:ngpus=2/' attributes
sed -i 's/+1:ncpus=2:mpiprocs=1/+1:ncpus=64:mpiprocs=1/' attributes
will_end 0
job
expect "chunks that differ" "$status $log" "0 warning: a rank has 2 or 64 CPUs, by the chunks of select, and all ranks get the threads of the first chunk"
sed -i 's/+1:ncpus=64:mpiprocs=1/+1:ncpus=2:mpiprocs=1/' attributes
job JOB_CHAIN=requeue
expect "JOB_CHAIN=requeue" "$status $(count mpirun) $log" "2 0 JOB_CHAIN=requeue: PBS lets only operators rerun a job*"
stand_in apptainer <<'SH'
exit 3
SH
touch llampi.sif
job JOB_IMAGE=llampi.sif
expect "an image that does not start" "$status $(last apptainer)" "3 apptainer exec --bind $folder*llampi.sif llampi train *--print-config"

# Its own folder, also of a subjob; the copy of the script that was submitted.
fresh
printf '[run]\ndir = runs/file\n' >>input.ini
will_end "0 1" "75 1" "75 10"
job
expect "run.dir of the file" "$(last llampi)" "llampi train --config input.ini --run.max_hours=1.9000"
job PBS_ARRAY_INDEX=4
expect "a subjob" "$(last llampi) $(grep RUN_DIR submitted) $(last qsub)" "* --run.dir=runs/file-4 * JOB_RUN_DIR=runs/file-4 *,PBS_ARRAY_INDEX *"
job JOB_RUN_DIR=runs/job JOB_SCRIPT=jobscripts/slurm.sh
expect "JOB_RUN_DIR" "$(last llampi)" "* --run.dir=runs/job *"
expect "JOB_SCRIPT" "$(last qsub)" "* jobscripts/slurm.sh"

fresh
will_end 1
job JOB_CHECK=1
expect "a check that fails" "$status $(count mpirun) $(count qsub) $log" "1 1 0 *llampi check ended with status 1: the run was not started*"

# The site file's qstat, of a server that answers the second time.
fresh
stand_in sleep <<<''
rm bin/qstat
stand_in ask_elsewhere <<'SH'
if [[ $(grep -c ask_elsewhere "$FOLDER/calls") == 1 ]]; then exit 1; fi
cat "$FOLDER/attributes"
SH
echo 'qstat() { ask_elsewhere "$@"; }' >site.env
will_end "75 10"
job JOB_SITE=site.env
expect "the site file's qstat" "$status $(count ask_elsewhere) $(last llampi) $(last qsub) $log" "0 2 * --run.max_hours=1.9000 *-l walltime=02:00:00 * saved in *"

# A server that does not answer: no job with other resources than this one.
will_end "75 20" 0 0
: >attributes
job JOB_RUN_DIR=runs/job JOB_SITE=site.env
expect "an unknown job" "$status $(count qsub) $log" "75 0 *its resources are not known: submit it by hand*"
job JOB_CHAIN=none JOB_SITE=site.env
expect "an unknown walltime" "$status $log" "0 the walltime is not known: the run will not save before it; set JOB_HOURS"
job JOB_CHAIN=none JOB_HOURS=0.5 JOB_SITE=site.env
expect "JOB_HOURS for an unknown walltime" "$(last llampi) $log" "* --run.max_hours=0.5 "

# PBS's copy of the script finds the shared file, or says what to set.
mkdir spool
mv jobscripts/pbs.sh spool/1.SC
script=spool/1.SC
mv jobscripts scripts
job
expect "no shared file" "$status $(count mpirun) $log" "2 0 there is no jobscripts/common.sh in $folder: *JOB_SCRIPTS*"
will_end "0 30"
job JOB_SCRIPTS=scripts
expect "JOB_SCRIPTS" "$status $(count mpirun)" "0 1"
finish
