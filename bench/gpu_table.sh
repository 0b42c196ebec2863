#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Speed of Llama-3-8B-shaped blocks on the GPUs of this machine, PyTorch beside it where it is installed, as tables in
# Markdown with the method:
#
#   bench/gpu_table.sh [--budget SECONDS] [--lengths "N..."] [--ranks N] [--program build/gpu_bench] [--folder FOLDER]
#                      [--beside FILE]... [--only choices] [-- OPTION...]
#
# FILE is a log of llmq (--log-file) of a deterministic run on this GPU, for the verdicts: whether a step is as fast beside
# it and beside compiled PyTorch as it is to be. The rows that verdicts need come first, each with PyTorch right after it, and take
# about 300 seconds on an H100; those that the budget (480) does not cover are in the table as not measured, the rest is named below it.
# `--only choices` measures steps with their logits as a run takes them against chunks of 1 GiB, three times in turns: about 3 minutes.
# Options behind `--` go to every gpu_bench: `--lengths 64 -- --device cpu --layers 1 --hidden 256 ...` tries the script out.
# PYTHON (python3) is the Python that has PyTorch. Results are kept in FOLDER (build/gpu_table), tables.md among them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

beside=() only='' budget=480 lengths="8192 4096 2048" ranks=1 program=build/gpu_bench folder=build/gpu_table
while (($#)); do
    case $1 in
        --budget) budget=$2; shift 2 ;;
        --lengths) lengths=$2; shift 2 ;;
        --ranks) ranks=$2; shift 2 ;;
        --program) program=$2; shift 2 ;;
        --folder) folder=$2; shift 2 ;;
        --beside) beside+=("$2"); shift 2 ;;
        --only)
            only=$2
            if [[ $only != choices ]]; then echo "gpu_table.sh: --only is choices, not $only" >&2; exit 2; fi
            shift 2
            ;;
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
rm -f "$folder/products.json" # of other days, when the GPU may have had another library

left() { echo $((budget - SECONDS)); }

# Where the GPU works: its clock in MHz and what it draws, once a second.
sampler=
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=clocks.sm,power.draw,utilization.gpu --format=csv,noheader,nounits -l 1 >"$clocks" 2>/dev/null &
    sampler=$!
fi
trap '[[ -z $sampler ]] || kill "$sampler" 2>/dev/null || true' EXIT

# say_not_measured NAME REASON...: a line in the results, of words without quotes; whether a verdict lacks it
verdict=true
say_not_measured() {
    printf '{"system":"llampi %s","not_measured":"%s","verdict":%s}\n' "$1" "${*:2}" "$verdict" >>"$results"
}

# run OPTION...: one configuration of gpu_bench
run() {
    local seconds status=0 most=90
    seconds=$(left)
    if ((seconds < 15)); then
        say_not_measured "$*" "no time left"
        return
    fi
    if ((seconds > most)); then seconds=$most; fi
    echo "== gpu_bench $*" >>"$log"
    timeout -k 5 "$seconds" "${launch[@]}" "$program" "${common[@]}" --choices "$folder/products.json" "$@" --output "$results" \
        >>"$log" 2>&1 || status=$?
    echo "gpu_bench $*: $(grep -v 'same when' "$log" | tail -n 1)" >&2
    if ((status == 124 || status == 137)); then
        if ((seconds < most)); then say_not_measured "$*" "no time left"; else say_not_measured "$*" "not done within $seconds seconds"; fi
    elif ((status != 0)); then
        say_not_measured "$*" "exit status $status, $(tail -n 1 "$log" | tr -d '"\134' | cut -c -200)"
    fi
}

# torch SECONDS ROWS OPTION...: PyTorch at the shapes of these rows
torch() {
    local seconds=$1 device=() status=0
    printf '%s\n' "$2" >"$folder/like.jsonl"
    if [[ " ${common[*]} " == *" --device cpu "* ]]; then device=(--device cpu); fi
    timeout -k 5 "$seconds" "${PYTHON:-python3}" bench/torch_llama.py --like "$folder/like.jsonl" --output "$results" \
        --budget "$seconds" "${device[@]}" "${@:3}" 2>&1 | tee -a "$log" >&2 || status=$?
    case $status in
        0) ;;
        124 | 137) say_not_measured "beside PyTorch ${*:3}" "no time left" ;;
        *) say_not_measured "beside PyTorch ${*:3}" "exit status $status, see $log" ;;
    esac
}
# beside_torch: compiled PyTorch at the shape of the row before, minutes from it: a GPU's speed changes with its temperature
beside_torch() {
    local seconds
    seconds=$(left)
    if ((seconds < 60)); then # compiling takes most of them
        say_not_measured "beside PyTorch compiled" "no time left"
        return
    fi
    torch $((seconds < 120 ? seconds : 120)) "$(tail -n 1 "$results")" --modes compiled
}

read -ra lengths <<<"$lengths"
longest=${lengths[0]}
short=(--profile 0 --products 0)
narrow=(--gradient bfloat16) # as llmq and PyTorch have them
small=(--hidden 2048 --ffn 8192 --heads 32 --kv-heads 8 --layers 16) # 1.24 billion parameters if the head were tied; untied 1.5 billion
of_8b=true # else the script is tried out
if [[ " ${common[*]} " == *" --hidden "* ]]; then of_8b=false; fi

judged=() # lengths
for length in "${lengths[@]}"; do
    if ((length == longest || length == 2048)); then judged+=("$length"); fi
done

# compare_choices TIMES: logits as a run takes them, and in chunks of 1 GiB, in turns
compare_choices() {
    local length choice i
    for length in "${judged[@]}"; do
        for ((i = 0; i < $1; ++i)); do
            for choice in "" "--logits-workspace 1024"; do
                # shellcheck disable=SC2086
                run --seq-len "$length" --layers 18 "${narrow[@]}" $choice "${short[@]}"
            done
        done
    done
}

# ---- what verdicts need ----
blocks=() with_18=$of_8b
measure_what_verdicts_need() {
    for length in "${judged[@]}"; do
        parts=("${short[@]}")
        if ((length == longest)); then parts=(); fi # where a step goes
        run --seq-len "$length" "${blocks[@]}" "${narrow[@]}" "${parts[@]}"
        beside_torch
        layers=$(sed -n 's/.*"layers":\([0-9]*\).*/\1/p' "$results" | head -n 1)
        if [[ -n $layers ]]; then blocks=(--layers "$layers"); fi # as many in all rows
        if [[ $layers == 18 ]]; then with_18=false; fi            # as llmq was measured with
        ! $with_18 || run --seq-len "$length" --layers 18 "${narrow[@]}" "${short[@]}"
    done
    if $of_8b; then
        for length in "${lengths[@]}"; do
            run --seq-len "$length" --layers 32 --checkpointing auto --micro-batch auto "${narrow[@]}" "${short[@]}"
        done
        run "${small[@]}" --seq-len 4096 "${narrow[@]}" "${short[@]}"
        beside_torch
        run "${small[@]}" --seq-len 4096 "${narrow[@]}" --deterministic 0 "${short[@]}" # as PyTorch is
    fi
    for length in "${judged[@]}"; do
        profile=$((length == longest ? 1 : 0))
        run --seq-len "$length" "${blocks[@]}" "${narrow[@]}" --product fp8 --profile $profile --products $profile
    done
    for file in "${beside[@]}"; do
        "$program" --beside "$file" --output "$results" >>"$log" 2>&1 || say_not_measured "beside $file" "$(tail -n 1 "$log" | tr -d '"\134')"
    done
}

# ---- the rest ----
measure_the_rest() {
    if $of_8b; then
        # What auto decides between at the longest: whether copies that it chose take no time, and what their alternative takes.
        run --seq-len "$longest" --layers 32 --checkpointing "feed_forward 8, selective" --offload residuals --micro-batch auto "${narrow[@]}" "${short[@]}"
        run "${small[@]}" --seq-len 4096 "${narrow[@]}" --labels 0.5 "${short[@]}" # as of chats
        run "${small[@]}" --seq-len 8192 "${narrow[@]}"
        beside_torch
        run "${small[@]}" --seq-len 4096 "${narrow[@]}"
        run "${small[@]}" --seq-len 8192 "${narrow[@]}" --deterministic 0 "${short[@]}"
    fi
    for length in "${lengths[@]}"; do run --seq-len "$length" "${blocks[@]}" --deterministic 0; done # as PyTorch, which is paired with these
    variants=140 # seconds kept for what follows
    if ((budget < 400)); then variants=40; fi
    if (($(left) > variants)); then
        torch $(($(left) - variants)) "$(grep '"deterministic":false' "$results" || true)"
    else
        say_not_measured "beside PyTorch" "no time left"
    fi
    for length in "${lengths[@]}"; do
        run --seq-len "$length" "${blocks[@]}" "${short[@]}"
        [[ " ${judged[*]} " == *" $length "* ]] || run --seq-len "$length" "${blocks[@]}" "${narrow[@]}" "${short[@]}"
        $with_18 || continue
        run --seq-len "$length" --layers 18 "${short[@]}"
        product=auto
        if [[ " ${judged[*]} " == *" $length "* ]]; then product=fp8; fi
        run --seq-len "$length" --layers 18 "${narrow[@]}" --product $product "${short[@]}"
    done
    # All of 8B with recomputation instead of smaller micro-batches.
    for length in "${lengths[@]}"; do
        if $of_8b && ((length < 8192)); then run --seq-len "$length" --layers 32 --checkpointing auto "${narrow[@]}" "${short[@]}"; fi
    done
    run --seq-len "$longest" "${blocks[@]}" --micro-batches 16 "${short[@]}"
    # Qwen2.5-7B's shape, as llmq publishes it for one H100: 4 sequences without recomputation. 16 micro-batches, where llmq has 128, hide AdamW too.
    ! $of_8b || run --seq-len 1024 --tokens 4096 --micro-batches 16 --hidden 3584 --ffn 18944 --heads 28 --kv-heads 4 --vocab 152064 --layers 28 \
        "${narrow[@]}" "${short[@]}"
    for length in "${lengths[@]}"; do run --seq-len "$length" --checkpointing full "${short[@]}"; done
    run --seq-len "$longest" "${blocks[@]}" --tuning off "${short[@]}"
    run --seq-len "$longest" "${blocks[@]}" --graph 0 "${short[@]}"
    run --seq-len "$longest" --state float32 "${short[@]}"
    run --seq-len "$longest" "${blocks[@]}" --attention native "${short[@]}"
    run --seq-len "$longest" "${blocks[@]}" --documents 4 "${short[@]}"
    ! $of_8b || compare_choices 2
}

if [[ $only == choices ]]; then
    $of_8b || { echo "gpu_table.sh: choices are compared with blocks of 8B only" >&2; exit 2; }
    compare_choices 3
else
    measure_what_verdicts_need
    verdict=false
    measure_the_rest
fi

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
beside a headroom of 12 GiB, 18 at most; hidden 2048: the 1.24 B shape, untied head (1.5 B); random tokens and weights; $ranks
rank(s). A step is so many micro-batches of so many sequences, clipping and AdamW included; three steps to warm up, then 3 to 10, each timed by the host from an
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
