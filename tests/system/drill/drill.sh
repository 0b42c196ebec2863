# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Sourced by the drills: a run that is small enough to be killed often, and what must be true of it in the end.
#
#   prepare SOURCE LLAMPI       an empty folder with a model and a token file; enters it
#   start RUN RANKS [OPTION...] starts the run, or continues it, in the background: $job is mpirun
#   train_undisturbed RANKS [OPTION...]
#                               the run `undisturbed`, with which the others are compared
#   wait_for_job                until $job has ended; returns its status
#   same_as_undisturbed RUN     metrics and checkpoint are those of the run that nobody disturbed, and nothing else is left

prepare() {
    source_dir=$1 llampi=$2
    folder=$(mktemp -d)
    trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
    cd "$folder" || exit 1
    # shellcheck source=scripts/mpi-env.sh
    source "$source_dir/scripts/mpi-env.sh"
    export OMP_NUM_THREADS=1 OMPI_MCA_odls_base_sigkill_timeout=0
    cat >config.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": true}
JSON
    "$llampi" tokenize --tokenizer bytes --output train.h5 "$source_dir/LICENSE" >/dev/null
}

start() {
    local run=$1 ranks=$2
    shift 2
    mpirun -n "$ranks" "$llampi" train --run.dir="$run" --model.config=config.json --data.train=train.h5 --data.seq_len=16 \
        --train.steps="$steps" --train.global_batch=12 --optimizer.warmup_steps=5 --checkpoint.every=3 --checkpoint.keep=2 \
        --log.every=1000000 "$@" >>"$run.log" 2>&1 &
    job=$!
}

# Open MPI's mpirun can wait for itself for ever, at its end, where a rank was killed just when mpirun got to know it (PMIx_server_finalize;
# seen with 4.1.4): then it goes the way of its ranks.
wait_for_job() {
    (
        gone=0
        while sleep 5 && kill -0 "$job"; do
            if grep -slqaP "^[^\x00]*llampi\x00train\x00.*run\.dir=$run\x00" /proc/[0-9]*/cmdline; then gone=0; else gone=$((gone + 1)); fi
            if ((gone == 6)); then kill -9 "$job"; fi
        done
    ) >/dev/null 2>&1 &
    disown
    wait "$job" 2>/dev/null
}

train_undisturbed() {
    run=undisturbed
    start $run "$@"
    wait_for_job || fail "the undisturbed run failed"
}

# Until no process of the run is left.
wait_for_ranks() {
    while grep -slqaP "run\.dir=$run\x00" /proc/[0-9]*/cmdline; do sleep 0.05; done
}

# What must not depend on when the run was interrupted.
curve() {
    sed -E 's/, "(step_seconds|time)".*//' "$1/metrics.jsonl"
}

# The tensors of the last checkpoint: all of the file but the time of its making.
last_tensors() {
    "$llampi" export --checkpoint "$1/checkpoints/step-$(printf %08d "$steps").h5" --output "$1.weights" >/dev/null 2>&1
    sha256sum <"$1.weights/model.safetensors"
    rm -rf "$1.weights"
}

same_as_undisturbed() {
    local run=$1 left
    diff <(curve undisturbed) <(curve "$run") >difference || { echo "$run: another curve"; head -5 difference; return 1; }
    [[ $(last_tensors undisturbed) == "$(last_tensors "$run")" ]] || { echo "$run: other weights at the end"; return 1; }
    left=$(cd "$run" && find . -type f ! -path './flight/*' ! -name history.jsonl | sort | tr '\n' ' ')
    # The last checkpoint and the newest before it. One more, where a rank was killed when the last one had its name and older ones
    # were not deleted yet: a finished run changes nothing.
    local last older='\./checkpoints/step-[0-9]{8}\.h5 '
    printf -v last './checkpoints/step-%08d.h5 ./config.ini ./metrics.jsonl ' "$steps"
    [[ $left =~ ^($older){1,2}"$last"$ ]] || { echo "$run: left are $left"; return 1; }
}

fail() {
    echo "$*" >&2
    tail -20 "$run.log" >&2
    exit 1
}
