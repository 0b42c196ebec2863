#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Several ranks with NCCL on this machine's GPUs, also on only one: collectives, the engine against its oracle, and
# whole runs of the program, hybrid groups 2 x 2 included, whose losses must agree with those of one rank; with
# fsdp.sum_order = tree in every bit. Then small models of other families and LoRA adapters, also of a base in 8 bits, whose losses must be those of CPUs.
#
#   tests/gpu/several_ranks.sh [BUILD]     BUILD: the folder with the program and its tests; default: build
#   DEVICE=cpu                             the same runs on CPUs: tries out this script where there is no GPU
#   KEEP=FOLDER                            where the runs are kept; default: a temporary folder, removed if all is well
#   PARTS="losses tree families adapters"  only these, of which a failure ends the one that it is in; default: tests, and all of them
#   ROOT=FOLDER                            with input/ and docs/, of the sources or of a bundle; default: that of this script
#
# Where ranks share a GPU, the program lets NCCL take each rank for a node of its own (NCCL_HOSTID) and the data go over
# sockets, so a collective takes some 10 ms: this shows that results are right, not how fast they come.
set -euo pipefail
# Where a time limit ends this script, `timeout --foreground` lets what it has started end, too.
export LC_ALL=C

root=$(realpath "${ROOT:-$(dirname "${BASH_SOURCE[0]}")/../..}")
build=$(realpath -m "${1:-$root/build}")
device=${DEVICE:-cuda}
llampi=$build/llampi
folder=$(realpath -m "${KEEP:-$(mktemp -d)}")
mkdir -p "$folder"
cd "$root" # configurations name their files from here

# shellcheck source=scripts/mpi-env.sh
if [[ -e scripts/mpi-env.sh ]]; then source scripts/mpi-env.sh; fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}

say() { printf '\n== %s\n' "$*"; }
fail() { # ends the part that is running
    echo "several_ranks: what was written is in $folder" >&2
    echo "several_ranks: $1" >&2 # the last line, which run-gpu-tests shows
    exit 1
}
[[ $device == cpu || $device == cuda ]] || fail "DEVICE is cpu or cuda"
[[ -x $llampi ]] || fail "there is no $llampi: build first, or give the build folder"

# ---- tests ---------------------------------------------------------------------------------------------------------

# Skipped is not passed here.
run_test() { # ranks, executable, its arguments
    local ranks=$1 test=$2
    shift 2
    say "$(basename "$test") on $ranks ranks"
    [[ -x $test ]] || fail "there is no $test: build it first"
    local log
    log=$folder/$(basename "$test")_$ranks.log
    timeout --foreground 900 mpirun -n "$ranks" "$test" --gtest_color=no "$@" >"$log" 2>&1 || { tail -n 50 "$log"; fail "$test failed on $ranks ranks"; }
    if grep -q 'no GPU to test' "$log"; then fail "$(grep -m1 'no GPU to test' "$log")"; fi
    tail -n 3 "$log"
}

gpu_options=()
if [[ $device == cuda ]]; then gpu_options=(--run.share_gpu=true); fi
part_tests() {
    local ranks
    for ranks in 1 2 4; do run_test "$ranks" "$build/tests/gpu/nccl/test_gpu_nccl"; done
    for ranks in 1 2 4; do run_test "$ranks" "$build/tests/gpu/engine/test_gpu_engine"; done
}

# ---- whole runs ----------------------------------------------------------------------------------------------------

if [[ ! -e $folder/tokens.h5 ]]; then
    say "a text to train on"
    cat docs/*.md README.md >"$folder/text"
    "$llampi" tokenize --tokenizer bytes --output "$folder/tokens.h5" "$folder/text"
fi

train() { # name, ranks, options; $on: another device than $device
    local name=$1 ranks=$2
    shift 2
    say "$name: $ranks ranks, $*"
    rm -rf "${folder:?}/$name"
    timeout --foreground 900 mpirun -n "$ranks" "$llampi" train --config input/small.ini --run.dir="$folder/$name" \
        --run.device="${on:-$device}" "${gpu_options[@]}" --data.train="$folder/tokens.h5" --data.eval= \
        --train.eval_every=0 --train.steps=10 --train.micro_batch=2 --train.global_batch=8 --optimizer.warmup_steps=2 \
        --checkpoint.every=0 "$@" >"$folder/$name.log" 2>&1 || { tail -n 30 "$folder/$name.log"; fail "$name failed"; }
    tail -n 2 "$folder/$name.log"
}

# The largest difference of the losses of two runs must be below a bound.
compare() { # name, name, bound
    paste <(losses "$1") <(losses "$2") | awk -v bound="$3" -v names="$1 and $2" '
        { n++; d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d; if (NF != 2 || $1 != $1 + 0) bad = 1 }
        END {
            printf "   %s: losses of %d steps differ by up to %.2g (bound %g)\n", names, n, most, bound
            exit bad || n != 10 || most > bound
        }' || fail "the losses of $1 and $2 do not agree"
}
losses() { sed -n 's/.*"loss" *: *\([-+0-9.eE]*\).*/\1/p' "$folder/$1/metrics.jsonl"; }

curve() { grep -o '"\(step\|loss\|grad_norm\|eval_loss\)" *: *[-+0-9.eE]*' "$folder/$1/metrics.jsonl"; }
weights() {
    rm -rf "${folder:?}/$1/hf"
    "$llampi" export --dtype float32 --checkpoint "$folder/$1" --output "$folder/$1/hf" >/dev/null
    sha256sum <"$folder/$1/hf/model.safetensors"
}
float32=(--fsdp.param_dtype=float32)
train_one() { train one 1 "${float32[@]}" --fsdp.strategy=no_shard; }
part_losses() {
    train_one
    train two 2 "${float32[@]}" --fsdp.strategy=full_shard
    train four 4 "${float32[@]}" --fsdp.strategy=full_shard
    train hybrid 4 "${float32[@]}" --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=2
    train hybrid_zero2 4 "${float32[@]}" --fsdp.strategy=hybrid_shard_zero2 --fsdp.shard_group_size=2

    say "float32: only the order of sums differs"
    # On CPUs, whose sums are in one order, ten such steps differ by 1e-8, the last digit of what is written. A thousand
    # times as much is allowed: small gradients, whose sign AdamW follows, carry other orders of sums on.
    for name in two four hybrid hybrid_zero2; do compare one "$name" 1e-5; done

    train bfloat16_one 1 --fsdp.param_dtype=bfloat16 --fsdp.strategy=no_shard
    train bfloat16_hybrid 4 --fsdp.param_dtype=bfloat16 --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=2
    say "bfloat16"
    # On CPUs, where only parameters are bfloat16, the differences are 1e-6 and 2e-3. On a GPU activations are as well: one
    # rounding of a logit of 4 is off by up to 1/128, and a loss is a mean over 2048 tokens.
    compare bfloat16_one bfloat16_hybrid 1e-2
    compare one bfloat16_hybrid 5e-2
}

part_tree() {
    say "sum_order = tree: the same bits on any number of ranks"
    tree=("${float32[@]}" --fsdp.sum_order=tree --train.eval_every=5 --data.eval="$folder/held.h5" --checkpoint.every=5)
    head -c 20000 "$folder/text" >"$folder/held"
    "$llampi" tokenize --tokenizer bytes --output "$folder/held.h5" "$folder/held"
    train tree_one 1 "${tree[@]}" --fsdp.strategy=no_shard
    train tree_two 2 "${tree[@]}" --fsdp.strategy=shard_grad_op --fsdp.accumulate=unsharded
    train tree_four 4 "${tree[@]}" --fsdp.strategy=full_shard
    train tree_hybrid 4 "${tree[@]}" --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=2
    train tree_resumed 2 "${tree[@]}" --fsdp.strategy=full_shard --run.resume="$folder/tree_four/checkpoints/step-00000005.h5"

    curve tree_one >"$folder/tree_one.curve"
    [[ $(wc -l <"$folder/tree_one.curve") -ge 30 ]] || fail "the metrics of tree_one are not whole"
    for name in tree_two tree_four tree_hybrid tree_resumed; do
        curve "$name" >"$folder/$name.curve"
        tail -n "$(wc -l <"$folder/$name.curve")" "$folder/tree_one.curve" | cmp -s - "$folder/$name.curve" ||
            fail "with sum_order = tree the losses, norms or evaluations of $name are not those of tree_one"
        [[ $(weights "$name") == "$(weights tree_one)" ]] || fail "with sum_order = tree the weights of $name are not those of tree_one"
        say "$name: losses, norms, evaluations and final weights equal those of one rank in every bit"
    done
    local refused=0
    timeout --foreground 300 mpirun -n 3 "$llampi" train --config input/small.ini --run.dir="$folder/tree_three" --run.device="$device" "${gpu_options[@]}" \
        --data.train="$folder/tokens.h5" --train.global_batch=6 --train.micro_batch=2 --train.steps=1 "${tree[@]}" >"$folder/tree_three.log" 2>&1 || refused=$?
    [[ $refused == 2 ]] || fail "sum_order = tree on 3 ranks ended with status $refused, and not refused with 2"
    grep -m1 '^llampi: fsdp.sum_order = tree' "$folder/tree_three.log" || fail "sum_order = tree on 3 ranks was refused for another reason"
}

part_families() {
    family() { # name, model_type, class, more fields of config.json
        mkdir -p "$folder/$1.model"
        sed -e "s/\"model_type\": \"llama\"/\"model_type\": \"$2\"/" -e "s/LlamaForCausalLM/$3ForCausalLM/" \
            -e 's/"num_hidden_layers": 6/"num_hidden_layers": 2/' -e "s/^{/{ $4/" input/small/config.json >"$folder/$1.model/config.json"
}
family qwen2 qwen2 Qwen2 '"use_sliding_window": true, "sliding_window": 100, "max_window_layers": 1,'
family qwen3 qwen3 Qwen3 '"head_dim": 128,'
family mistral mistral Mistral '"sliding_window": 100,'
# In float32 only the order of sums differs, and the last bits of exponentials. A millionth of a loss is what that does in ten
# steps of a tiny model (kFloat32Tolerance in tests/support/expect_trajectory.hpp); losses are about 5.
for name in qwen2 qwen3 mistral; do
    on=cpu train "${name}_cpu" 1 "${float32[@]}" --model.config="$folder/$name.model"
    train "$name" 2 "${float32[@]}" --model.config="$folder/$name.model"
    train "${name}_bfloat16" 2 --fsdp.param_dtype=bfloat16 --model.config="$folder/$name.model"
    say "$name: as on CPUs"
    compare "${name}_cpu" "$name" 2e-5
    compare "${name}_cpu" "${name}_bfloat16" 5e-2
    text=$("$llampi" generate --weights "$folder/$name" --device "$device" --prompt "The " --max-tokens 150 --temperature 0 2>>"$folder/$name.log") ||
        fail "generate failed with the weights of $name"
    [[ $text == "The "* ]] || fail "what was generated with the weights of $name does not begin with the prompt"
done
}

part_adapters() {
    [[ -e $folder/one/checkpoints ]] || train_one
    # Adapters of the model that the run "one" trained; the bounds are those of the families. The same elements are dropped on CPUs.
    adapters=(--model.weights="$folder/one" --lora.rank=8 --lora.targets=proj --lora.dropout=0.1 --optimizer.lr=5e-3)
    on=cpu train adapters_cpu 1 "${float32[@]}" "${adapters[@]}"
    train adapters 2 "${float32[@]}" "${adapters[@]}"
    train adapters_bfloat16 2 --fsdp.param_dtype=bfloat16 "${adapters[@]}"
    on=cpu train adapters_int8_cpu 1 "${float32[@]}" "${adapters[@]}" --lora.base_dtype=int8
    train adapters_int8 2 "${float32[@]}" "${adapters[@]}" --lora.base_dtype=int8
    say "adapters: as on CPUs"
    compare adapters_cpu adapters 2e-5
    compare adapters_cpu adapters_bfloat16 5e-2
    compare adapters_int8_cpu adapters_int8 2e-5
    train adapters_tree_one 1 "${float32[@]}" "${adapters[@]}" --fsdp.sum_order=tree
    train adapters_tree_two 2 "${float32[@]}" "${adapters[@]}" --fsdp.sum_order=tree --fsdp.strategy=shard_grad_op
    train adapters_tree_four 4 "${float32[@]}" "${adapters[@]}" --fsdp.sum_order=tree
    for name in adapters_tree_two adapters_tree_four; do
        [[ $(curve "$name") == "$(curve adapters_tree_one)" ]] || fail "with sum_order = tree the losses or norms of $name are not those of adapters_tree_one"
        [[ $(weights "$name") == "$(weights adapters_tree_one)" ]] || fail "with sum_order = tree the adapters of $name are not those of adapters_tree_one"
        say "$name: losses, norms and final adapters equal those of one rank in every bit"
    done
}

parts="losses tree families adapters"
if [[ $device == cuda ]]; then parts="tests $parts"; fi
failed=""
for part in ${PARTS:-$parts}; do
    declare -F "part_$part" >/dev/null || fail "PARTS=$part: there are $parts"
    set +e # so that the part has its own -e: one that ends in a condition has none
    (
        set -e
        "part_$part"
    )
    status=$?
    set -e
    if ((status != 0)); then failed+=" $part"; fi
done
if [[ $failed == " ${PARTS:-}" ]]; then exit 1; fi # of a single part the last line is the reason
[[ -z $failed ]] || fail "failed:$failed"

say "all agree"
if [[ -z ${KEEP:-} ]]; then rm -rf "$folder"; fi
