#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slurm_test.sh SOURCE LLAMPI: what jobscripts/slurm.sh does with each way in which its ranks can end.
set -uo pipefail
# shellcheck source=tests/system/jobs/jobs.sh
source "$1/tests/system/jobs/jobs.sh"
prepare "$1" "$2"

stand_in srun <<'SH'
while [[ $1 == --* ]]; do shift; done
exec "$@"
SH
stand_in scontrol <<'SH'
if [[ $1 == show ]]; then echo "JobId=7 JobName=mine   Requeue=${REQUEUE:-1} Restarts=0 BatchFlag=1"; fi
exit "${REQUEUE_STATUS:-0}"
SH

# job [NAME=VALUE...] -- ARGUMENT...
job() {
    local variables=()
    while [[ $1 != -- ]]; do variables+=("$1"); shift; done
    shift
    : >calls
    env SLURM_SUBMIT_DIR="$folder" SLURM_JOB_NAME=mine SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=3 "${variables[@]}" \
        bash jobscripts/slurm.sh "$@" >log 2>&1
    status=$?
    log=$(<log)
}
fresh() { rm -rf runs mine; }

# The end, and a user's mistake.
will_end "0 100" 2 2
job -- input.ini --optimizer.lr=1e-3
expect "status of a run at its end" $status 0
expect "the command of the ranks" "$(last llampi)" "llampi train --config input.ini --optimizer.lr=1e-3 --run.dir=runs/mine"
expect "a finished job" "$(count scontrol)" 0
job -- input.ini
expect "status of a mistake" $status 2
job -- missing.ini
expect "status without a configuration" $status 2
expect "ranks without a configuration" "$(count srun)" 0
expect "a mistake that ranks find" "$(count scontrol)" 0

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
expect "a job without progress" "$(count scontrol)" 0

# Stopped by hand, at once or while the state cannot be saved.
fresh
mkdir -p runs/mine
will_end "75 10" "75 20" "137"
touch runs/mine/stop
job -- input.ini
expect "status of a stop by hand" $status 75
expect "the log of a stop by hand" "$log" "*stopped by the file runs/mine/stop; not submitted again*"
expect "a stop by hand" "$(count scontrol)" 0
job -- input.ini
expect "the job after a stop by hand" "$(last scontrol)" "scontrol requeue 7"
touch runs/mine/stop
job -- input.ini
expect "a failure after a stop by hand" "$status $(count scontrol)" "137 0"

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
expect "after the last retry" "$status $(count scontrol)" "1 0"
expect "the log after the last retry" "$log" "*3 retries made*not submitted again*"
expect "what is left in the run folder" "$(ls runs/mine)" checkpoints
will_end 1 1 1
job JOB_RETRIES=0 -- input.ini
expect "without retries" "$status $(count scontrol)" "1 0"
job JOB_RETRIES=1 -- input.ini
expect "one retry" "$(last scontrol)" "scontrol requeue 7"
job JOB_RETRIES=1 SLURM_JOB_ID=8 -- input.ini
expect "retries of another job do not count" "$(last scontrol)" "scontrol requeue 8"

# --no-requeue, and a controller that refuses.
fresh
will_end "75 10" 1 "75 20"
job REQUEUE=0 -- input.ini
expect "saved, --no-requeue" "$status $(grep -c requeue calls)" "75 0"
expect "the log with --no-requeue" "$log" "*--no-requeue): submit it again to continue*"
job REQUEUE=0 -- input.ini
expect "failed, --no-requeue" "$status $(grep -c requeue calls)" "1 0"
job REQUEUE_STATUS=1 -- input.ini
expect "refused by the controller" $status 75

# The folder: of the arguments, the environment, the file, JOB_RUN_DIR; one for each task of an array.
printf '[run]\ndir = mine/by file # not llampi'"'"'s\n' >>input.ini
will_end "0 1" "0 1" "0 1" "0 1" "75 10" "75 10"
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

# The signal of Slurm goes to the ranks, whose status is the job's.
fresh
cat >bin/srun <<'SH'
#!/bin/bash
trap 'mkdir -p runs/mine/checkpoints; touch runs/mine/checkpoints/step-00000010.h5; exit 75' USR1
kill -USR1 $PPID # at once, or before the shell has told its ranks
while :; do sleep 0.05; done
SH
job -- input.ini
expect "a signal of Slurm" "$status $(last scontrol)" "0 scontrol requeue 7"
finish
