# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tune_check.sh and plan_accuracy.sh: small models, their steps measured and predicted on the CPUs of this machine.
# Needs: llampi (program), folder (to write to), machine (file of `llampi bench --calibrate`), steps (timed, of which the fastest counts).
: "${llampi:?}" "${folder:?}" "${machine:?}" "${steps:?}"

write_model() { # NAME HIDDEN FFN LAYERS VOCABULARY
    mkdir -p "$folder/$1"
    cat >"$folder/$1/config.json" <<EOF
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": $2, "intermediate_size": $3,
 "num_hidden_layers": $4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": $5, "max_position_embeddings": 1024,
 "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": false}
EOF
}

# Of the first key after a row's group, or of an object: one number.
number_after() { # PATTERN KEY FILE
    tr -d ' \n' <"$3" | grep -o "$1[^}]*\"$2\":[0-9.e+-]*" | head -n 1 | sed 's/.*://'
}

# With one model only, so that the steps of the others are not used.
calibrate() {
    write_model calibration 384 1024 3 4096
    mpirun -n 2 "$llampi" bench --model.config="$folder/calibration" --data.seq_len=256 --train.micro_batch=2 --train.global_batch=4 \
        --run.threads=1 --steps="$steps" --calibrate "$machine" >"$folder/calibration.log" 2>&1 || {
        tail -n 5 "$folder/calibration.log" >&2
        exit 1
    }
}

# Seconds of the fastest step.
measured() { # RANKS THREADS OPTION...
    local ranks=$1 threads=$2
    shift 2
    mpirun -n "$ranks" "$llampi" bench --steps-only --steps="$steps" --run.threads="$threads" --json "$folder/measured.json" "$@" \
        >"$folder/measured.log" 2>&1 || {
        tail -n 5 "$folder/measured.log" >&2
        exit 1
    }
    number_after '"group":"step"' seconds "$folder/measured.json"
}

predicted() { # RANKS THREADS OPTION...
    local ranks=$1 threads=$2
    shift 2
    "$llampi" plan --ranks "$ranks" --threads "$threads" --machine "$machine" --json "$@" >"$folder/predicted.json"
    number_after '"step_time":{' step_seconds "$folder/predicted.json"
}
