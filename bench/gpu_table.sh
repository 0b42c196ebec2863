#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Speed of Llama-3-8B-shaped blocks on the GPUs of this machine, PyTorch beside it where it is installed, as tables in
# Markdown with the method:
#
#   bench/gpu_table.sh [--budget SECONDS] [--lengths "N..."] [--ranks N] [--program build/gpu_bench] [--folder FOLDER]
#                      [--beside FILE]... [-- OPTION...]
#
# FILE is a log of llmq (--log-file) of a deterministic run on this GPU, for the verdicts: whether a step is as fast beside
# it and beside compiled PyTorch as it is to be. The most important configurations come first; what the budget (240) does
# not cover is listed as not measured. Options behind `--` go to every gpu_bench: `--lengths 64 -- --device cpu --layers 1
# --hidden 256 ...` tries the script out. PYTHON (python3) is the Python that has PyTorch. Results are kept in FOLDER
# (build/gpu_table), tables.md among them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

beside=() budget=240 lengths="8192 4096 2048" ranks=1 program=build/gpu_bench folder=build/gpu_table
while (($#)); do
    case $1 in
        --budget) budget=$2; shift 2 ;;
        --lengths) lengths=$2; shift 2 ;;
        --ranks) ranks=$2; shift 2 ;;
        --program) program=$2; shift 2 ;;
        --folder) folder=$2; shift 2 ;;
        --beside) beside+=("$2"); shift 2 ;;
        --) shift; break ;;
        *) echo "gpu_table.sh: unknown option $1; the head of the script says how to use it" >&2; exit 2 ;;
    esac
done
common=("$@")
if [[ ! -x $program ]]; then
    echo "gpu_table.sh: there is no $program; build it (make build), or name it with --program" >&2
    exit 2
fi
# shellcheck source=scripts/mpi-env.sh
[[ ! -f scripts/mpi-env.sh ]] || source scripts/mpi-env.sh
launch=()
if ((ranks > 1)); then launch=(mpirun -n "$ranks"); fi
mkdir -p "$folder"
results=$folder/results.jsonl log=$folder/log clocks=$folder/clocks
: >"$results"; : >"$log"; : >"$clocks"
rm -f "$folder"/products-*.json # of other days, when the GPU may have had another library

left() { echo $((budget - SECONDS)); }

# Where the GPU works: its clock in MHz and what it draws, once a second.
sampler=
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=clocks.sm,power.draw,utilization.gpu --format=csv,noheader,nounits -l 1 >"$clocks" 2>/dev/null &
    sampler=$!
fi
trap '[[ -z $sampler ]] || kill "$sampler" 2>/dev/null || true' EXIT

# say_not_measured NAME REASON...: a line in the results, of words without quotes
say_not_measured() {
    printf '{"system":"llampi %s","not_measured":"%s"}\n' "$1" "${*:2}" >>"$results"
}

# run OPTION...: one configuration of gpu_bench
run() {
    local seconds status=0
    seconds=$(left)
    if ((seconds < 15)); then
        say_not_measured "$*" "no time left"
        return
    fi
    if ((seconds > 90)); then seconds=90; fi
    echo "== gpu_bench $*" >>"$log"
    local tuning=sustained
    if [[ " $* " =~ " --tuning "([a-z]+)" " ]]; then tuning=${BASH_REMATCH[1]}; fi
    timeout -k 5 "$seconds" "${launch[@]}" "$program" "${common[@]}" --choices "$folder/products-$tuning.json" "$@" --output "$results" \
        >>"$log" 2>&1 || status=$?
    echo "gpu_bench $*: $(grep -v 'same when' "$log" | tail -n 1)" >&2
    case $status in
        0) ;;
        124 | 137) say_not_measured "$*" "not done within $seconds seconds" ;;
        *) say_not_measured "$*" "exit status $status, $(tail -n 1 "$log" | tr -d '"\134' | cut -c -200)" ;;
    esac
}

# layers_at LENGTH: of the first result at this length, as PyTorch's has them
layers_at() { grep "\"seq_len\":$1[,}]" "$results" | sed -n 's/.*"layers":\([0-9]*\).*/\1/p' | head -n 1; }

read -ra lengths <<<"$lengths"
longest=${lengths[0]}
short=(--profile 0 --products 0)
for length in "${lengths[@]}"; do run --seq-len "$length" --deterministic 0; done # as PyTorch, which is paired with these
for length in "${lengths[@]}"; do run --seq-len "$length" "${short[@]}"; done
run --seq-len "$longest" --products 1 # where a step goes as it comes
for length in "${lengths[@]}"; do # products in FP8, of as many layers
    ((length == longest || length == 2048)) || continue
    profile=$((length == longest ? 1 : 0))
    run --seq-len "$length" --layers "$(layers_at "$length")" --product fp8 --profile $profile --products $profile
done
small=(--hidden 2048 --ffn 8192 --heads 32 --kv-heads 8 --layers 16) # 1.24 billion parameters and an untied head
of_8b=true # else the script is tried out
if [[ " ${common[*]} " == *" --hidden "* ]]; then of_8b=false; fi
if $of_8b; then
    for length in 4096 8192; do
        run "${small[@]}" --seq-len "$length" --deterministic 0 "${short[@]}"
        run "${small[@]}" --seq-len "$length"
    done
fi
variants=140 # seconds kept for what follows
if ((budget < 400)); then variants=40; fi
if (($(left) > variants)); then
    torch_device=()
    if [[ " ${common[*]} " == *" --device cpu "* ]]; then torch_device=(--device cpu); fi
    seconds=$(($(left) - variants))
    timeout -k 5 "$seconds" "${PYTHON:-python3}" bench/torch_llama.py --like "$results" --output "$results" \
        --budget "$seconds" "${torch_device[@]}" 2>&1 | tee -a "$log" >&2 || say_not_measured "beside PyTorch" "no time left, or see $log"
fi
# Beside llmq, whose logs are given as --beside: the layers that it was measured with, and all of Llama-3-8B.
for length in "${lengths[@]}"; do
    $of_8b || continue
    run --seq-len "$length" --layers 32 --checkpointing auto --gradient bfloat16 "${short[@]}"
done
for file in "${beside[@]}"; do
    "$program" --beside "$file" --output "$results" >>"$log" 2>&1 || say_not_measured "beside $file" "$(tail -n 1 "$log" | tr -d '"\134')"
done
for length in "${lengths[@]}"; do
    $of_8b || continue
    run --seq-len "$length" --layers 18 "${short[@]}"
    for layers in $(printf '%s\n' 18 "$(layers_at "$length")" | sort -u); do
        run --seq-len "$length" --layers "$layers" --gradient bfloat16 "${short[@]}" # as llmq and PyTorch have them
        ((length == 4096)) || run --seq-len "$length" --layers "$layers" --gradient bfloat16 --product fp8 "${short[@]}"
    done
done
run --seq-len "$longest" --micro-batches 16 "${short[@]}"
! $of_8b || run --seq-len 1024 --hidden 3584 --ffn 18944 --heads 28 --kv-heads 4 --vocab 152064 --layers 28 --gradient bfloat16 "${short[@]}" # Qwen2.5-7B's shape
for length in "${lengths[@]}"; do run --seq-len "$length" --checkpointing full "${short[@]}"; done
run --seq-len "$longest" --tuning off "${short[@]}"
run --seq-len "$longest" --graph 0 "${short[@]}"
run --seq-len "$longest" --state float32 "${short[@]}"
run --seq-len "$longest" --attention native "${short[@]}"
run --seq-len "$longest" --documents 4 "${short[@]}"
# What a run chooses by itself against what it chose before, in turns: each has its best of two.
for length in "${lengths[@]}"; do
    $of_8b || continue
    ((length == longest || length == 2048)) || continue
    for choice in "--tuning bursts" "--logits-workspace 1024" "" "--tuning bursts" "--logits-workspace 1024"; do
        # shellcheck disable=SC2086
        run --seq-len "$length" --layers 18 --gradient bfloat16 $choice "${short[@]}"
    done
done

# ---- the tables and how they came about ----

# field NAME: of the first result that has it
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$results" | head -n 1; }

# The median of the clock while the GPU was busy.
busy_clock() {
    awk -F ', *' '$3 + 0 >= 90 { print $1 + 0 }' "$clocks" | sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'
}

gpu_line() {
    command -v nvidia-smi >/dev/null || return 0
    nvidia-smi --query-gpu=driver_version,clocks.max.sm,power.limit,temperature.gpu --format=csv,noheader | head -n 1 |
        awk -F ', *' '{ printf ", driver %s, highest SM clock %s, power limit %s, %s degrees at the end", $1, $2, $3, $4 }'
    local clock
    clock=$(busy_clock)
    [[ -z $clock ]] || printf ', %s MHz while busy (median of samples, one a second)' "$clock"
}

{
    "$program" --table "$results"
    cat <<TEXT

Method: $(field kernels)$(gpu_line); $(field libraries); revision $(git rev-parse --short HEAD 2>/dev/null || echo unknown); $(date +%F).
Blocks of Llama-3-8B (hidden 4096, ffn 14336, 32 and 8 heads, vocabulary 128256, embedding and head whole), as many as fit
beside a headroom of 12 GiB, 32 at most; random tokens and weights; $ranks rank(s). A step is so many micro-batches of so many
sequences, clipping and AdamW included; three steps to warm up, then 3 to 10, each timed by the host from an
idle GPU to an idle GPU; the median counts. Parameters are bfloat16, master and moments too (stochastic rounding) unless the row
says otherwise, gradients float32, matrix products and attention bfloat16; the same bits in every run unless the row says
otherwise. PyTorch: the same model and layers, all in bfloat16, scaled_dot_product_attention, fused AdamW, blocks and head
compiled or not. MFU: 6 FLOP per parameter of a matrix and token, the head included, the embedding not, and attention with
its causal half; recomputation does not count; over the data sheet's peak. The product limit is the best rate of an 8192³
bfloat16 product in the same session. Kernel classes: CUDA events around each operation in another run of the
step, issued and not replayed; nothing waits in between, and what the operations leave is waits and gaps; operations fused with a
product are split by the time of the product alone.
TEXT
} | tee "$folder/tables.md"
