#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A stand-in for PBS, by the names by which it is called: qsub, qstat; for cluster_test.sh also qsig, and pbs_run, which runs a job. One job
# runs at a time, at once. It does what OpenPBS 23.06 was seen to do where that matters to a job script:
#
#   - the script is copied; -l, -v and the other options are of this qsub alone: nothing is inherited from the job that calls it, and
#     where there is no -l, the #PBS lines count
#   - a job has the variables of -v and PBS's own, and no others; qstat -f folds lines, and escapes commas in Variable_List
#   - the node file has a line for each rank of each host; a job runs on its first host
#   - the job is a session, led by a login shell (whose .profile knows qsub) that runs the script; a signal (qsig, the walltime) goes to every
#     process of the session, and a shell that it kills makes the exit status 256 and the signal's number
#   - what the job writes is readable by its owner only
#
# PBS_STAND_IN is its folder: a folder for each job, with script, attributes, environment, nodefile, log, session and, in the end, status;
# `on`, a command that runs one on a node; and `nodes`, the names of the nodes.
set -uo pipefail
home=$PBS_STAND_IN

refuse() {
    echo "qsub: $*" >&2
    exit 1
}

declare -A resource=() # walltime, select, ...
name='' account='' queue=workq variables=''
options() {
    local option value
    while (($#)); do
        option=$1 value=${2:-}
        case $option in
        -l) # a=b,c=d
            IFS=, read -r -a value <<<"$value"
            for value in "${value[@]}"; do resource[${value%%=*}]=${value#*=}; done
            ;;
        -N) name=$value ;;
        -A) account=$value ;;
        -q) queue=$value ;;
        -v) variables=$value ;;
        -r | -j | -W | -P | -m | -M) ;;
        *) refuse "unknown option $option" ;;
        esac
        shift 2
    done
}

# As qstat prints a line, folded.
attribute() {
    local text="    $1 = $2"
    while ((${#text} > 78)); do
        printf '%s\n' "${text:0:78}"
        text=$'\t'${text:78}
    done
    printf '%s\n' "$text"
}

run() { # JOB, when those before it have ended
    local job=$1 folder=$home/$1 environment shell end walltime hours minutes seconds status
    while ((job > 1)) && [[ ! -e $home/$((job - 1))/status ]]; do sleep 0.1; done
    mapfile -d '' -t environment <"$folder/environment"
    # shellcheck disable=SC2016
    "$home/on" "$(head -n 1 "$folder/nodefile")" env -i "${environment[@]}" setsid bash -c 'echo $$ >"$1/session"; exec -l bash' job "$folder" \
        <<<"$folder/script" >"$folder/log" 2>&1 &
    shell=$!
    walltime=$(sed -n 's/^ *Resource_List.walltime = //p' "$folder/attributes")
    IFS=: read -r hours minutes seconds <<<"$walltime"
    end=$((SECONDS + 3600 * 10#$hours + 60 * 10#$minutes + 10#$seconds))
    while kill -0 $shell 2>/dev/null; do
        if ((SECONDS >= end)); then
            pkill -TERM --session "$(<"$folder/session")"
            sleep 5
            pkill -KILL --session "$(<"$folder/session")"
        fi
        sleep 0.1
    done
    wait $shell
    status=$?
    if ((status > 128)); then status=$((status + 128)); fi
    pkill -KILL --session "$(<"$folder/session")"
    echo $status >"$folder/status"
}

case ${0##*/} in
pbs_run)
    run "$1"
    exit
    ;;
qstat)
    job=${2%%.*}
    [[ -e $home/$job/attributes && ! -e $home/$job/status ]] || { echo "qstat: Unknown Job Id $2" >&2; exit 153; }
    cat "$home/$job/attributes"
    exit
    ;;
qsig)
    pkill "-$1" --session "$(<"$home/$2/session")"
    exit
    ;;
qsub) ;;
esac

script=${*: -1}
[[ -r $script ]] || refuse "script file: $script: No such file or directory"
given=("${@:1:$#-1}")
while read -r -a line; do options "${line[@]}"; done < <(sed -n 's/^#PBS //p' "$script")
for ((i = 0; i < ${#given[@]}; i += 2)); do
    if [[ ${given[i]} == -l ]]; then resource=(); break; fi
done
options ${given[@]+"${given[@]}"}
[[ -n ${resource[select]:-} ]] || refuse "no select"

job=1
while ! mkdir "$home/$job" 2>/dev/null; do job=$((job + 1)); done
folder=$home/$job
umask 077
cp "$script" "$folder/script"
chmod 700 "$folder/script"

mapfile -t hosts <"$home/nodes"
chunk=0
IFS=+ read -r -a chunks <<<"${resource[select]}"
for of_a_kind in "${chunks[@]}"; do
    ranks=$(sed -n 's/.*:mpiprocs=\([0-9]*\).*/\1/p' <<<"$of_a_kind")
    for ((i = 0; i < ${of_a_kind%%:*}; ++i, ++chunk)); do
        ((chunk < ${#hosts[@]})) || refuse "not enough nodes"
        for ((rank = 0; rank < ${ranks:-1}; ++rank)); do echo "${hosts[chunk]}"; done
    done
done >"$folder/nodefile"

{
    printf '%s\0' HOME="$home" USER=root LOGNAME=root PBS_JOBID="$job.server" PBS_JOBNAME="$name" PBS_NODEFILE="$folder/nodefile" \
        PBS_O_WORKDIR="$PWD" PBS_O_QUEUE="$queue" PBS_ENVIRONMENT=PBS_BATCH PBS_STAND_IN="$home" PATH=/usr/bin:/bin
    list=PBS_O_WORKDIR=$PWD
    IFS=, read -r -a variables <<<"$variables"
    for variable in ${variables[@]+"${variables[@]}"}; do
        if [[ $variable != *=* ]]; then variable=$variable=${!variable}; fi
        printf '%s\0' "$variable"
        list+=,${variable//,/\\,}
    done
} >"$folder/environment"
{
    echo "Job Id: $job.server"
    attribute Job_Name "$name"
    attribute queue "$queue"
    if [[ -n $account ]]; then attribute Account_Name "$account"; fi
    attribute Resource_List.mpiprocs "$(wc -l <"$folder/nodefile")"
    attribute Resource_List.nodect "$chunk"
    for name in "${!resource[@]}"; do attribute "Resource_List.$name" "${resource[$name]}"; done
    attribute schedselect "${resource[select]}"
    attribute Variable_List "$list"
} >"$folder/attributes"

setsid --fork "$home/bin/pbs_run" "$job" </dev/null >/dev/null 2>&1
echo "$job.server"
