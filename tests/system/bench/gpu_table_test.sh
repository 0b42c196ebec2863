#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_table_test.sh SOURCE BUILD: which configurations bench/gpu_table.sh measures, in which order, with a gpu_bench and a Python that only note what
# they are called with; what it does without time; and that `llampi plan` finds room on an H100 of 80 GB for each of them.
# shellcheck disable=SC2016 # scripts that are written to files
set -euo pipefail
source_dir=$1 build=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LC_ALL=C FAKE=$folder

fail() {
    echo "$*" >&2
    exit 1
}
program() { # file, script
    printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
    chmod +x "$1"
}
# A row of what was asked for, of LAYERS (17) where that was left to it. A log of llmq is a row, too. FAIL: options of which it fails.
program "$folder/gpu_bench" '
    declare -A is=([seq-len]=8192 [layers]=${LAYERS:-17} [deterministic]=1 [hidden]=4096); asked=(); system=llampi
    while (($#)); do
        case $1 in
            --choices) ;;
            --output) output=$2 ;;
            --table) echo "| a table |"; exit ;;
            --beside) system=llmq; asked+=("$1" "${2##*/}") ;;
            *) is[${1#--}]=$2; asked+=("$1" "$2") ;;
        esac
        shift 2
    done
    echo "${asked[*]}" >>"$FAKE/calls"
    if [[ -n ${FAIL:-} && ${asked[*]} == *"$FAIL"* ]]; then echo "gpu_bench: out of memory"; exit 1; fi
    deterministic=true; ((is[deterministic])) || deterministic=false
    printf "{\"deterministic\":%s,\"hidden\":%s,\"layers\":%s,\"seq_len\":%s,\"system\":\"%s\"}\n" $deterministic "${is[hidden]}" "${is[layers]}" \
        "${is[seq-len]}" $system >>"$output"'
# PyTorch: the shapes that it is to have (hidden size, layers, length), and its modes.
program "$folder/python" '
    while (($#)); do case $1 in --like) like=$2 ;; --modes) modes=$2 ;; esac; shift; done
    echo "PyTorch ${modes:-all}:" $(sed "s/.*hidden\":\([0-9]*\),\"layers\":\([0-9]*\),\"seq_len\":\([0-9]*\),.*/\1x\2x\3/" "$like") >>"$FAKE/calls"'
table() { # options of the script
    rm -rf "$folder/calls" "$folder/tables"
    PYTHON=$folder/python bash "$source_dir/bench/gpu_table.sh" --program "$folder/gpu_bench" --folder "$folder/tables" "$@" >"$folder/out" 2>"$folder/err" ||
        fail "gpu_table.sh: status $?: $(cat "$folder/err")"
}

# What verdicts need: first, and PyTorch right after the row that it is compared with.
short='--profile 0 --products 0'
narrow='--gradient bfloat16'
small='--hidden 2048 --ffn 8192 --heads 32 --kv-heads 8 --layers 16'
cat >"$folder/needed" <<TEXT
--seq-len 8192 $narrow
PyTorch compiled: 4096x17x8192
--seq-len 8192 --layers 18 $narrow $short
--seq-len 2048 --layers 17 $narrow $short
PyTorch compiled: 4096x17x2048
--seq-len 2048 --layers 18 $narrow $short
--seq-len 8192 --layers 32 --checkpointing auto --micro-batch auto $narrow $short
--seq-len 4096 --layers 32 --checkpointing auto --micro-batch auto $narrow $short
--seq-len 2048 --layers 32 --checkpointing auto --micro-batch auto $narrow $short
$small --seq-len 4096 $narrow $short
PyTorch compiled: 2048x16x4096
$small --seq-len 4096 $narrow --deterministic 0 $short
--seq-len 8192 --layers 17 $narrow --product fp8 --profile 1 --products 1
--seq-len 2048 --layers 17 $narrow --product fp8 --profile 0 --products 0
TEXT
cat >"$folder/rest" <<TEXT
--seq-len 8192 --layers 32 --checkpointing feed_forward 8, selective --offload residuals --micro-batch auto $narrow $short
$small --seq-len 4096 $narrow --labels 0.5 $short
$small --seq-len 8192 $narrow
PyTorch compiled: 2048x16x8192
$small --seq-len 4096 $narrow
$small --seq-len 8192 $narrow --deterministic 0 $short
--seq-len 8192 --layers 17 --deterministic 0
--seq-len 4096 --layers 17 --deterministic 0
--seq-len 2048 --layers 17 --deterministic 0
PyTorch all: 2048x16x4096 2048x16x8192 4096x17x8192 4096x17x4096 4096x17x2048
--seq-len 8192 --layers 17 $short
--seq-len 8192 --layers 18 $short
--seq-len 8192 --layers 18 $narrow --product fp8 $short
--seq-len 4096 --layers 17 $short
--seq-len 4096 --layers 17 $narrow $short
--seq-len 4096 --layers 18 $short
--seq-len 4096 --layers 18 $narrow --product auto $short
--seq-len 2048 --layers 17 $short
--seq-len 2048 --layers 18 $short
--seq-len 2048 --layers 18 $narrow --product fp8 $short
--seq-len 4096 --layers 32 --checkpointing auto $narrow $short
--seq-len 2048 --layers 32 --checkpointing auto $narrow $short
--seq-len 8192 --layers 17 --micro-batches 16 $short
--seq-len 1024 --tokens 4096 --micro-batches 16 --hidden 3584 --ffn 18944 --heads 28 --kv-heads 4 --vocab 152064 --layers 28 $narrow $short
--seq-len 8192 --checkpointing full $short
--seq-len 4096 --checkpointing full $short
--seq-len 2048 --checkpointing full $short
--seq-len 8192 --layers 17 --tuning off $short
--seq-len 8192 --layers 17 --graph 0 $short
--seq-len 8192 --state float32 $short
--seq-len 8192 --layers 17 --attention native $short
--seq-len 8192 --layers 17 --documents 4 $short
TEXT
choices() { # TIMES: in turns
    for length in 8192 2048; do
        for ((i = 0; i < $1; ++i)); do
            for choice in '' '--logits-workspace 1024 '; do echo "--seq-len $length --layers 18 $narrow $choice$short"; done
        done
    done
}
choices 2 >>"$folder/rest"
table --budget 480 --beside "$folder/llmq.json"
{
    cat "$folder/needed"
    echo "--beside llmq.json"
    cat "$folder/rest"
} >"$folder/expected"
diff "$folder/expected" "$folder/calls" || fail "these are other calls (>) than expected (<)"
! grep -q not_measured "$folder/tables/results.jsonl" || fail "something was not measured: $(grep not_measured "$folder/tables/results.jsonl")"
mv "$folder/calls" "$folder/all"

# Where as many layers fit as llmq was measured with, they are not measured twice: once for verdicts, and twice among the choices.
LAYERS=18 table --budget 480
[[ $(grep -cxF -e "--seq-len 8192 $narrow" -e "--seq-len 8192 --layers 18 $narrow $short" "$folder/calls") == 3 ]] || fail "18 layers twice: $(cat "$folder/calls")"

# These alone.
choices 3 >"$folder/expected"
table --budget 480 --only choices
diff "$folder/expected" "$folder/calls" || fail "these are other calls (>) of the choices than expected (<)"

# Each fits on an H100. Where the number of layers is left to gpu_bench, it takes as many as fit.
shapes() {
    local -A is
    local line sequences micro_batch
    grep -v -e PyTorch -e --beside "$folder/all" | grep -e --layers | while read -r line; do
        is=([hidden]=4096 [ffn]=14336 [heads]=32 [kv-heads]=8 [vocab]=128256 [tokens]=8192 [micro-batches]=2 [micro-batch]=given [checkpointing]=none [gradient]=float32 [product]=auto)
        # shellcheck disable=SC2086 # a line is words
        set -- $line
        while (($#)); do
            is[${1#--}]=$2
            shift 2
        done
        sequences=$((is[tokens] / is[seq-len])) micro_batch=$sequences
        if [[ ${is[micro-batch]} == auto ]]; then micro_batch=auto; fi
        echo "${is[hidden]} ${is[ffn]} ${is[heads]} ${is[kv-heads]} ${is[vocab]} ${is[layers]} ${is[seq-len]} $micro_batch $((sequences * is[micro-batches]))" \
            "${is[checkpointing]} ${is[gradient]} ${is[product]}"
    done | sort -u
}
plan_of() { # a line of shapes
    printf '{"architectures":["LlamaForCausalLM"],"hidden_act":"silu","hidden_size":%s,"intermediate_size":%s,"num_attention_heads":%s,
        "num_key_value_heads":%s,"vocab_size":%s,"num_hidden_layers":%s,"max_position_embeddings":8192,"rms_norm_eps":1e-5,"rope_theta":5e5,
        "model_type":"llama","tie_word_embeddings":false}' "${@:1:6}" >"$folder/config.json"
    "$build/llampi" plan --device h100 --host-memory 200 --model.config="$folder" --model.weights=random --data.train=none.h5 --train.steps=1 \
        --data.seq_len="$7" --train.micro_batch="$8" --train.global_batch="$9" --activation.checkpointing="${10}" --fsdp.param_dtype=bfloat16 \
        --optimizer.master_dtype=bfloat16 --optimizer.moment_dtype=bfloat16 --optimizer.gradient_dtype="${11}" --fsdp.reduce_dtype="${11}" \
        --fsdp.product_dtype="${12}" 2>&1
}
planned=0
while read -r -a shape; do
    text=$(plan_of "${shape[@]}") || fail "${shape[*]}: $text"
    fits=$(grep '^fits: needs about .* GiB per GPU, an h100 has 79' <<<"$text") || fail "${shape[*]}: $text"
    echo "${shape[*]}: $fits"
    planned=$((planned + 1))
done < <(shapes)
((planned >= 15)) || fail "only $planned shapes"
# The plan can say no.
! text=$(plan_of 3584 18944 28 4 152064 28 1024 8 16 none bfloat16 auto) || fail "too large a shape fits: $text"

# Without time: what verdicts need is marked, and nothing runs.
rows() { grep -c "not_measured\":\"$1\",\"verdict\":$2" "$folder/tables/results.jsonl" || true; }
table --budget 1
[[ ! -e $folder/calls ]] || fail "it runs without time: $(cat "$folder/calls")"
[[ $(rows 'no time left' true) == 14 ]] || fail "not 14 rows that verdicts need: $(cat "$folder/tables/results.jsonl")"
[[ $(rows 'no time left' false) -ge 30 ]] || fail "too few other rows"
for row in '--seq-len 8192 --gradient bfloat16' 'beside PyTorch compiled' "--seq-len 4096 --layers 32 --checkpointing auto --micro-batch auto $narrow $short" "$small --seq-len 4096 $narrow $short"; do
    grep -qF -- "\"llampi $row\",\"not_measured\":\"no time left\",\"verdict\":true" "$folder/tables/results.jsonl" || fail "not marked: $row"
done

# A row that fails is noted, and those after it are measured.
FAIL='--seq-len 8192 --gradient bfloat16' table --budget 480
[[ $(rows 'exit status 1, gpu_bench: out of memory' true) == 1 ]] || fail "the failure is not noted"
grep -qxF -- "--seq-len 2048 $narrow $short" "$folder/calls" || fail "no row after the one that failed: $(cat "$folder/calls")"

# With gradients in bfloat16 gpu_bench takes as many layers as with those in float32, so that rows can be compared.
if [[ -x $build/bench/gpu_bench_emulated ]]; then # of 8 GiB
    layers() {
        "$build/bench/gpu_bench_emulated" --hidden 256 --ffn 1024 --heads 2 --kv-heads 1 --vocab 128 --seq-len 8 --tokens 8 --steps 1 --profile 0 --products 0 \
            --headroom-gib 7.9 --gradient "$1" 2>&1 | grep -o '[0-9]* layers'
    }
    [[ $(layers bfloat16) == "$(layers float32)" ]] || fail "$(layers bfloat16), but $(layers float32) with gradients in float32"
    [[ $(layers float32) != "18 layers" ]] || fail "all layers fit"
    # The tokens of a step in micro-batches as a run chooses them: here all at once.
    "$build/bench/gpu_bench_emulated" --hidden 256 --ffn 256 --heads 2 --kv-heads 1 --vocab 128 --layers 1 --seq-len 8 --tokens 8 --micro-batches 4 --micro-batch auto \
        --checkpointing auto --steps 1 --profile 0 --products 0 --output "$folder/divided" >/dev/null 2>&1
    grep -q '"divides":true,.*"micro_batches":1,.*"sequences":4,' "$folder/divided" || fail "not in one micro-batch: $(cat "$folder/divided")"
fi

# PyTorch measures a shape once for each of its modes. Without a budget it only says so.
row='{"system":"llampi","device":"GPU","hidden":4096,"feed_forward":14336,"query_heads":32,"key_value_heads":8,"vocabulary":128256,"layers":17,
    "seq_len":8192,"sequences":1,"micro_batches":2,"peak_tflops":989.4,"checkpointing":"none","state":"bfloat16","attention":"auto","documents":1}'
for _ in 1 2; do tr -d "\n" <<<"$row"; echo; done >"$folder/like"
head -n 1 "$folder/like" >"$folder/torch"
for modes in compiled compiled compiled,eager; do
    python3 "$source_dir/bench/torch_llama.py" --like "$folder/like" --output "$folder/torch" --budget 0 --modes $modes >/dev/null
done
[[ $(grep -c PyTorch "$folder/torch") == 2 && $(grep -c 'compiled"' "$folder/torch") == 1 ]] || fail "not each mode once: $(cat "$folder/torch")"
echo "gpu_table.sh: $(grep -c . "$folder/all") calls, $planned shapes that fit"
