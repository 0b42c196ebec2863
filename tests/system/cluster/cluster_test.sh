#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cluster_test.sh SOURCE LLAMPI [SCENARIO...]: the job scripts on a cluster of two nodes on this machine (nodes.sh), with a real Slurm and
# with a stand-in for PBS (pbs.sh); `make test-cluster`. Needs root, network namespaces, and Debian's packages of Slurm, which it installs.
# It leaves a Slurm that the machine has alone. Status 1: a scenario failed; 2: it cannot run here.
# Every run that was stopped, killed or cut must end like one that nobody disturbed: the same losses and gradient norms in every
# printed digit, the same weights in every bit.
#
#   chain      Slurm: stopped ahead of the walltime and by a signal, requeued, until it is done: three jobs or more
#   submit     JOB_CHAIN=submit: three jobs, each of which submits the next one; from a folder without job scripts, with sbatch --export
#   before     JOB_CHAIN=none: three jobs, submitted beforehand
#   array      a job array: two runs, each in its folder, one stopped and continued
#   network    the network to a node is cut, the watchdog ends the job, it goes back into the queue
#   node       a node is lost with all that ran on it, Slurm puts the job back into the queue
#   pbs        PBS: three jobs, with resources and variables of the first one, ranks on both nodes
#   pbs_stop   PBS: the file stop ends a chain with everything saved; qsig kills the job, and loses nothing older
#
# KEEP=1 keeps the folder with all logs.
# shellcheck disable=SC2317 # functions that are called by name
set -uo pipefail
source_dir=$(cd "$1" && pwd) llampi=$(realpath "$2")
shift 2
here=$source_dir/tests/system/cluster
all="chain submit before array network node pbs pbs_stop"
read -r -a scenarios <<<"${*:-$all}"

cannot() {
    echo "test-cluster: cannot run here: $*" >&2
    exit 2
}
for scenario in "${scenarios[@]}"; do
    [[ " $all " == *" $scenario "* ]] || cannot "there is no scenario $scenario; there are $all"
done
[[ -x $llampi ]] || cannot "there is no program $llampi; build it first"
[[ $(id -u) == 0 ]] || cannot "it needs root, for network namespaces and Slurm"
[[ ! -e /run/netns/llampi0 ]] || cannot "there is a network namespace llampi0: another one runs, or was killed (then: ip netns del llampi0)"
for command in ip nsenter unshare mpirun; do
    command -v $command >/dev/null || cannot "$command is missing (Debian: iproute2, util-linux, openmpi-bin)"
done
{ unshare --net --uts --ipc --mount true && ip netns add llampi0 && ip netns del llampi0; } 2>/dev/null ||
    cannot "namespaces are not allowed (a container without CAP_SYS_ADMIN?)"
if [[ " ${scenarios[*]} " =~ \ (chain|submit|before|array|network|node)\  ]]; then
    missing=()
    for command in slurmctld slurmd sbatch:slurm-client munged:munge; do
        command -v "${command%:*}" >/dev/null || missing+=("${command#*:}")
    done
    [[ -n $(find /usr/lib -name mpi_pmix.so -path '*slurm*' -print -quit 2>/dev/null) ]] || missing+=(slurm-wlm-basic-plugins)
    if ((${#missing[@]})); then
        command -v apt-get >/dev/null || cannot "Slurm is missing (slurmctld, slurmd, sbatch, munged, its pmix plugin), and there is no apt-get to install it"
        echo "test-cluster: installing with apt: ${missing[*]}" >&2
        export DEBIAN_FRONTEND=noninteractive
        installed=$({ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } 2>&1 </dev/null) ||
            { tail -n 5 <<<"$installed" >&2; cannot "apt-get cannot install ${missing[*]}"; }
    fi
fi

base=$(mktemp -d /tmp/llampi-cluster.XXXXXX)
chmod 755 "$base"
# shellcheck source=tests/system/cluster/nodes.sh
source "$here/nodes.sh"
# shellcheck source=tests/system/cluster/slurm.sh
source "$here/slurm.sh"
# shellcheck source=tests/system/cluster/pbs.sh
source "$here/pbs.sh"

clean_up() {
    slurm_down
    pbs_down
    nodes_down
    wait 2>/dev/null
    if [[ ${KEEP:-0} == 1 ]]; then echo "kept: $base"; else rm -rf "$base"; fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# ---- a run --------------------------------------------------------------------------------------------------------------------------

work=$base/work
mkdir -p "$work" && cd "$work" || exit 1
# The nodes share what the machine has: no rank is bound, and messages between nodes go over their link.
cat >site.env <<END
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_io=romio321 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=10.78.0.0/24 OMPI_MCA_oob_tcp_if_include=10.78.0.0/24
export OMPI_MCA_orte_tmpdir_base=/dev/shm
export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=$base/agent OMPI_MCA_plm_rsh_no_tree_spawn=1
llampi=$llampi
END
# shellcheck disable=SC2016
printf '%s\n' '#!/bin/bash' 'while [[ $1 == -* ]]; do shift; done' 'host=$1; shift' \
    "exec nsenter --target \"\$(<'$base/nodes/'\$host)\" --net --uts --ipc --mount --wd=\"\$PWD\" -- bash -c \"\$*\"" >"$base/agent"
chmod +x "$base/agent"
cat >config.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128, "tie_word_embeddings": true}
JSON
"$llampi" tokenize --tokenizer bytes --output train.h5 "$source_dir/LICENSE" >/dev/null || exit 1
settings() { # STEPS
    cat <<END
[model]
config = config.json
[data]
train = train.h5
seq_len = 96
[train]
steps = $1
global_batch = 12
[optimizer]
warmup_steps = 5
[checkpoint]
every = 20
keep = 2
[log]
every = 100
END
}
undisturbed() ( # NAME: NAME.ini by mpirun, at once
    # shellcheck source=scripts/mpi-env.sh
    source "$source_dir/scripts/mpi-env.sh"
    OMP_NUM_THREADS=1 mpirun -n 2 "$llampi" train --config "$1.ini" --run.dir="undisturbed/$1" >"undisturbed-$1.log" 2>&1 || {
        tail "undisturbed-$1.log" >&2
        exit 1
    }
)
curve() { sed -E 's/, "(step_seconds|time)".*//' "$1/metrics.jsonl"; }
weights() { # of the last checkpoint
    local files=("$1"/checkpoints/step-*.h5)
    "$llampi" export --checkpoint "${files[-1]}" --output "$base/weights" >/dev/null 2>&1
    sha256sum <"$base/weights/model.safetensors"
    rm -rf "$base/weights"
}
same_as_undisturbed() { # NAME RUN_DIR
    expect "the curve of $2" "$(diff <(curve "undisturbed/$1") <(curve "$2") | head -n 4)" ""
    expect "the weights of $2" "$(weights "$2")" "$(weights "undisturbed/$1")"
}
step() { tail -n 1 "$1/metrics.jsonl" 2>/dev/null | sed -E "s/.*\"step\": ([0-9]+).*/\1/" | grep . || echo 0; }
is_at() { (($(step "$1") >= $2)); }
log() { cat ./*-"$1".log 2>/dev/null; }

failed=0
expect() { # WHAT ACTUAL EXPECTED, a pattern
    # shellcheck disable=SC2053
    if [[ $2 != $3 ]]; then
        printf '%s: %s: %s\n  is not %s\n' "$scenario" "$1" "$2" "$3" >&2
        failed=1
    fi
}

# ---- Slurm --------------------------------------------------------------------------------------------------------------------------

# submit SBATCH_OPTION... -- ARGUMENT...: prints the job.
submit() {
    local options=()
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    JOB_SITE=$work/site.env slurm sbatch --parsable --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --job-name="$scenario" "${options[@]}" \
        "$source_dir/jobscripts/slurm.sh" "$@"
}
end_of() { wait_for "the end of job $1" "$2" is_in_state "$1" 'COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL'; }
tell() { slurm scancel --batch --signal=USR1 "$1"; } # as Slurm does ahead of the walltime

chain() {
    local job
    job=$(submit --time=1 --signal=B:USR1@20 -- long.ini)
    wait_for "a stop ahead of the walltime" 100 has_restarted "$job" 1 || return
    echo "  job 1 stopped at step $(step runs/chain) of $(steps_of long)"
    expect "the log of job 1" "$(log "$job")" "*saved in runs/chain; back into the queue*"
    wait_for "steps of job 2" 60 is_at runs/chain $(($(step runs/chain) + 10)) || return
    tell "$job"
    wait_for "a stop by a signal" 60 has_restarted "$job" 2 || return
    echo "  job 2 stopped at step $(step runs/chain)"
    end_of "$job" 300 || return
    expect "its state" "$(state "$job")" COMPLETED
    echo "  $(($(attribute "$job" Restarts) + 1)) jobs"
    same_as_undisturbed long runs/chain
}
has_restarted() { (($(attribute "$1" Restarts) >= $2)); }
steps_of() { sed -n 's/^steps = //p' "$1.ini"; }

submit_chain() {
    local jobs=() next i
    # The ranks of all three jobs get what the site file exports, and the jobs their settings, though sbatch is to export little.
    { cat "$work/site.env" && echo 'export LLAMPI_OPTIMIZER_LR=2e-3'; } >"$work/rate.env"
    jobs[0]=$(SBATCH_NO_REQUEUE=1 submit --export="JOB_SITE=$work/rate.env,JOB_CHAIN=submit,PATH=$PATH" --time=30 -- short.ini)
    for ((i = 0; i < 2; ++i)); do
        wait_for "steps of job ${jobs[i]}" 60 is_at runs/submit $(($(step runs/submit) + 10)) || return
        tell "${jobs[i]}"
        end_of "${jobs[i]}" 60 || return
        expect "the state of job ${jobs[i]}" "$(state "${jobs[i]}")" COMPLETED
        next=$(log "${jobs[i]}" | sed -n 's/^Submitted batch job //p')
        expect "the next job" "$next" '[0-9]*'
        jobs+=("$next")
        expect "its dependency, time and tasks" \
            "$(attribute "$next" TimeLimit) $(attribute "$next" NumTasks) $(attribute "$next" NumNodes) $(attribute "$next" JobName)" "00:30:00 2 2* submit"
    done
    end_of "${jobs[2]}" 120 || return
    expect "the state of the last job" "$(state "${jobs[2]}")" COMPLETED
    echo "  jobs ${jobs[*]}"
    same_as_undisturbed other_rate runs/submit
}

before() {
    local jobs=() i
    for ((i = 0; i < 3; ++i)); do jobs+=("$(JOB_CHAIN=none submit --time=30 --dependency=singleton -- short.ini)"); done
    for ((i = 0; i < 2; ++i)); do
        wait_for "steps of job ${jobs[i]}" 60 is_at runs/before $(($(step runs/before) + 10)) || return
        tell "${jobs[i]}"
        end_of "${jobs[i]}" 60 || return
        expect "the end of job ${jobs[i]}" "$(state "${jobs[i]}") $(attribute "${jobs[i]}" ExitCode)" "FAILED 75:0"
    done
    end_of "${jobs[2]}" 120 || return
    expect "the state of the last job" "$(state "${jobs[2]}")" COMPLETED
    same_as_undisturbed short runs/before
}

array() {
    local job
    job=$(submit --time=30 --array=0-1 -- short.ini)
    wait_for "steps of task 1" 60 is_at runs/array-1 10 || return
    tell "${job}_1"
    end_of "${job}_0" 180 && end_of "${job}_1" 180 || return
    expect "their states" "$(state "${job}_0") $(state "${job}_1") $(attribute "${job}_1" Restarts)" "COMPLETED COMPLETED 1"
    same_as_undisturbed short runs/array-0
    same_as_undisturbed short runs/array-1
}

network() {
    local job begin
    job=$(submit --time=30 -- short.ini --run.watchdog_seconds=5)
    wait_for "steps" 60 is_at runs/network 25 || return
    begin=$SECONDS
    cut_link node1
    wait_for "the end of the ranks" 60 grep -q 'back into the queue' network-"$job".log || { heal_link node1; return; }
    echo "  the job went back into the queue $((SECONDS - begin)) s after the cut"
    heal_link node1
    expect "the log" "$(log "$job")" "*watchdog: rank 1 on node1 *failed with status *; back into the queue for retry 1 of 3*"
    end_of "$job" 240 || return
    expect "its state" "$(state "$job")" COMPLETED
    same_as_undisturbed short runs/network
}

node() {
    local job pids begin
    job=$(submit --time=30 -- short.ini --run.watchdog_seconds=300)
    wait_for "steps" 60 is_at runs/node 25 || return
    begin=$SECONDS
    cut_link node1
    mapfile -t pids < <(processes_on node1 | grep -vx "$(<"$base/nodes/node1")")
    kill -9 "${pids[@]}" 2>/dev/null
    wait_for "Slurm" 90 has_restarted "$job" 1 || { heal_link node1; start_node node1; return; }
    echo "  Slurm put the job back into the queue $((SECONDS - begin)) s after the node was lost"
    heal_link node1
    start_node node1
    end_of "$job" 240 || return
    expect "its state" "$(state "$job")" COMPLETED
    same_as_undisturbed short runs/node
}

# ---- PBS ----------------------------------------------------------------------------------------------------------------------------

pbs() {
    local job=1 first ended=()
    first=$(JOB_ARGS="--train.steps=$(steps_of medium)" JOB_HOURS=0.0017 LLAMPI_OPTIMIZER_NO_DECAY='norm,"x" y|a' pbs_submit -N pbs \
        -l select=2:ncpus=1:mpiprocs=1 -l walltime=00:01:00 -A abc \
        -v "JOB_CONFIG=long.ini,JOB_SITE=$work/site.env,JOB_SCRIPTS=$source_dir/jobscripts,JOB_ARGS,JOB_HOURS,LLAMPI_OPTIMIZER_NO_DECAY" "$source_dir/jobscripts/pbs.sh")
    for ((job = first; ; ++job)); do
        if ((job == first + 1)); then # the first one ends by JOB_HOURS, this one by a signal, as one that mpirun is sent by hand
            wait_for "steps of job $job" 60 is_at runs/pbs $(($(step runs/pbs) + 10)) || return
            pkill -USR1 --exact --session "$(<"$base/pbs/$job/session")" mpirun
        fi
        wait_for "the end of job $job" 120 pbs_has_ended "$job" || return
        ended+=("$(<"$base/pbs/$job/status")")
        grep -q 'submitting the next job' "$base/pbs/$job/log" || break
    done
    echo "  jobs ended with ${ended[*]}"
    expect "their ends" "${ended[*]}" "0 0 0*"
    expect "the last job" "$(grep -E '^ *(Resource_List.(select|walltime)|Account_Name) ' "$base/pbs/$job/attributes" | sort | tr -s ' \n' ' ')" \
        " Account_Name = abc Resource_List.select = 2:ncpus=1:mpiprocs=1 Resource_List.walltime = 00:01:00 "
    expect "its ranks" "$(<"$base/pbs/$job/log")" "*2 on 2 nodes*"
    same_as_undisturbed no_decay runs/pbs
}

pbs_stop() {
    local job submit=(pbs_submit -N pbs_stop -l "select=2:ncpus=1:mpiprocs=1" -l walltime=00:05:00
        -v "JOB_CONFIG=short.ini,JOB_SITE=$work/site.env,JOB_SCRIPTS=$source_dir/jobscripts" "$source_dir/jobscripts/pbs.sh")
    job=$("${submit[@]}")
    wait_for "steps" 60 is_at runs/pbs_stop 10 || return
    touch runs/pbs_stop/stop
    wait_for "the end of the job" 60 pbs_has_ended "$job" || return
    expect "the end by the file stop" "$(<"$base/pbs/$job/status") $(<"$base/pbs/$job/log")" "75 *stopped by the file runs/pbs_stop/stop; not submitted again*"
    job=$("${submit[@]}")
    wait_for "steps" 60 is_at runs/pbs_stop 45 || return
    pbs_signal "$job" USR1
    wait_for "the end of the job" 60 pbs_has_ended "$job" || return
    expect "the end by qsig" "$(<"$base/pbs/$job/status")" 266
    job=$("${submit[@]}")
    wait_for "the last job" 180 pbs_has_ended "$job" || return
    expect "the end" "$(<"$base/pbs/$job/status")" 0
    same_as_undisturbed short runs/pbs_stop
}

# ---- all of them --------------------------------------------------------------------------------------------------------------------

begin=$SECONDS
nodes_up 2 || cannot "the nodes do not start"
# As many steps as take a minute, which is more than a job of one minute has.
settings 40 >pace.ini
undisturbed pace || exit 1
pbs_up
step_seconds=$(sed -E 's/.*"step_seconds": ([0-9.e-]+).*/\1/' undisturbed/pace/metrics.jsonl | sort -g | sed -n 5p) # as where nothing else runs
settings "$(awk -v s="$step_seconds" 'BEGIN { print int(60 / s) }')" >long.ini
settings "$(awk -v s="$step_seconds" 'BEGIN { n = int(12 / s); print n < 80 ? 80 : n }')" >short.ini
settings "$(awk -v s="$step_seconds" 'BEGIN { n = int(20 / s); print n < 80 ? 80 : n }')" >medium.ini
echo "a step takes $step_seconds s; long runs have $(steps_of long) steps"
if [[ " ${scenarios[*]} " == *" chain "* ]]; then undisturbed long || exit 1; fi
undisturbed short || exit 1
if [[ " ${scenarios[*]} " == *" submit "* ]]; then LLAMPI_OPTIMIZER_LR=2e-3 && export LLAMPI_OPTIMIZER_LR && cp short.ini other_rate.ini && undisturbed other_rate || exit 1; fi
unset LLAMPI_OPTIMIZER_LR
if [[ " ${scenarios[*]} " == *" pbs "* ]]; then
    cp medium.ini no_decay.ini
    (export LLAMPI_OPTIMIZER_NO_DECAY='norm,"x" y|a' && undisturbed no_decay) || exit 1
fi
echo "undisturbed runs: $((SECONDS - begin)) s"
if [[ " ${scenarios[*]} " =~ \ (chain|submit|before|array|network|node)\  ]]; then
    slurm_up || { tail -n 5 "$base"/slurm/log/* >&2; exit 1; }
    echo "Slurm $(sbatch --version | sed "s,.* ,,") is up after $((SECONDS - begin)) s"
fi
run_scenario() {
    failed=0
    if [[ $scenario == submit ]]; then submit_chain; else "$scenario"; fi || failed=1
    if ((failed == 0)); then return 0; fi
    tail -n 15 ./"$scenario"-*.log "$base"/pbs/*/log 2>/dev/null >&2
    if [[ -n ${SLURM_CONF:-} ]]; then
        slurm squeue >&2
        slurm scancel --user=root
        wait_for "idle nodes" 60 nodes_are_idle
    fi
    return 1
}
failures=0
for scenario in "${scenarios[@]}"; do
    begin_here=$SECONDS
    echo "== $scenario"
    if ! run_scenario; then
        # Open MPI 4.1.4 dies in MPI_Init now and then, when a message of another rank is early (docs/clusters.md). The scripts go on, but
        # the jobs are not those that a scenario expects.
        if grep -qs 'Signal: Segmentation fault' ./"$scenario"-*.log; then
            echo "   Open MPI crashed in MPI_Init: once more"
            rm -rf "runs/$scenario"* ./"$scenario"-*.log
            run_scenario
        else
            false
        fi
    fi || { echo "   FAILED after $((SECONDS - begin_here)) s"; failures=$((failures + 1)); continue; }
    echo "   as undisturbed, $((SECONDS - begin_here)) s"
done
echo "$((SECONDS - begin)) s in all"
exit $((failures > 0))
