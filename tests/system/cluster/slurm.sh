# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Sourced by cluster_test.sh, after nodes.sh: Slurm on the nodes, of the system's packages, with a configuration and keys of its own.
#
#   slurm_up                starts it
#   start_node NODE         starts its slurmd, as after a reboot
#   slurm COMMAND...        runs a command of Slurm's on node0, as on a login node
#   attribute JOB NAME      a word of `scontrol show job`
#   state JOB               its state
#   wait_for WHAT SECONDS COMMAND...     until the command succeeds

slurm_up() {
    local i
    mkdir -p "$base"/slurm/{state,spool,log}
    export SLURM_CONF=$base/slurm/slurm.conf
    {
        cat <<END
ClusterName=llampi
SlurmctldHost=node0(10.78.0.10)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
# A job that is requeued waits for as long as its credential is good.
AuthInfo=socket=$base/slurm/munge.socket,cred_expire=10
StateSaveLocation=$base/slurm/state
SlurmdSpoolDir=$base/slurm/spool/%n
SlurmctldPidFile=$base/slurm/slurmctld.pid
SlurmdPidFile=$base/slurm/slurmd.%n.pid
SlurmctldLogFile=$base/slurm/log/slurmctld.log
SlurmdLogFile=$base/slurm/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
MpiDefault=pmix
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=3600
SlurmdTimeout=15
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
END
        for ((i = 0; i < nodes; ++i)); do
            echo "NodeName=node$i NodeAddr=10.78.0.$((10 + i)) CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=2000"
            mkdir -p "$base/slurm/spool/node$i"
        done
        echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    } >"$SLURM_CONF"
    echo "PMIxCliTmpDirBase=/dev/shm" >"$base/slurm/mpi.conf" # the nodes share /tmp
    (umask 077 && head -c 1024 /dev/urandom >"$base/slurm/munge.key")
    munged --key-file="$base/slurm/munge.key" --socket="$base/slurm/munge.socket" --pid-file="$base/slurm/munged.pid" \
        --log-file="$base/slurm/log/munged.log" --seed-file="$base/slurm/munge.seed" --force 2>"$base/slurm/log/munged.start" || {
        cat "$base/slurm/log/munged.start" >&2
        return 1
    }
    slurm slurmctld -c || return 1
    for ((i = 0; i < nodes; ++i)); do start_node "node$i" || return 1; done
    wait_for "Slurm's nodes" 30 nodes_are_idle
}

nodes_are_idle() { [[ $(slurm sinfo -h -o '%D %t') == "$nodes idle" ]]; }

start_node() {
    # Folders and sockets of steps that were killed: with them a job that comes back to this node under its number could not start.
    rm -rf "$base/slurm/spool/$1"/{pmix,stepd}.*
    on "$1" find /dev/shm -mindepth 1 -delete
    on "$1" slurmd
}

slurm_down() {
    local file
    for file in "$base"/slurm/*.pid; do
        if [[ -s $file ]]; then kill "$(<"$file")" 2>/dev/null; fi
    done
    return 0
}

slurm() { on node0 "$@"; }
attribute() { slurm scontrol --oneliner show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1; }
state() { attribute "$1" JobState; }
is_in_state() { [[ $(state "$1") =~ ^($2)$ ]]; }

wait_for() {
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@"; do
        if ((SECONDS >= end)); then
            echo "$what: waited in vain" >&2
            return 1
        fi
        sleep 0.3
    done
}
