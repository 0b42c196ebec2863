#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What FSDP does on a node with several GPUs, in one command: tokens/s of Llama 3 8B on each GPU beside published figures, how
# much of the communication is hidden, bus bandwidth, and a verdict on each key of communication that is off by default.
#
#   bench/several_gpus.sh [--program build/llampi] [--ranks N] [--folder FOLDER] [-- OPTION...]
#
# N is the number of visible GPUs unless it is given. Options behind `--` go to every `llampi train`; so
#
#   bench/several_gpus.sh --ranks 2 -- --run.device=cpu --model.config=input/small --data.seq_len=32 --activation.checkpointing=none
#
# tries the script out without a GPU. Weights are random and the data are bytes: neither changes the speed. Results are kept
# in FOLDER (build/several_gpus). The exit status is 1 if the first run, without any of the keys, fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

program=build/llampi ranks='' folder=build/several_gpus steps=12 seconds=600
while (($#)); do
    case $1 in
        --program) program=$2; shift 2 ;;
        --ranks) ranks=$2; shift 2 ;;
        --folder) folder=$2; shift 2 ;;
        --) shift; break ;;
        *) echo "several_gpus.sh: unknown option $1; the head of the script says how to use it" >&2; exit 2 ;;
    esac
done
common=("$@")
if [[ ! -x $program ]]; then
    echo "several_gpus.sh: there is no $program; build it (make build), or name it with --program" >&2
    exit 2
fi
if [[ -z $ranks ]]; then ranks=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true); fi
if ((ranks < 2)); then
    echo "several_gpus.sh: $ranks GPUs are visible, and several are needed; --ranks N says how many ranks there are to be" >&2
    exit 2
fi
# shellcheck source=scripts/mpi-env.sh
[[ ! -f scripts/mpi-env.sh ]] || source scripts/mpi-env.sh
mkdir -p "$folder"
folder=$(realpath "$folder") # by which runs are found that must end: those of another checkout have another
text=$folder/text tokens=$folder/tokens.h5
for _ in {1..60}; do cat docs/*.md README.md; done >"$text"
rm -f "$tokens"
"$program" tokenize --tokenizer bytes --output "$tokens" "$text" >"$folder/tokenize.log"

# end_run NAME: mpirun and its ranks, at once
end_run() { pkill -KILL -f -- "--run.dir=$folder/$1 " || true; }
trap 'pkill -KILL -f -- "--run.dir=$folder/" || true' EXIT

# run NAME OPTION...: a run with a trace of its last step but one. It is killed when it has done its steps, for at its end it would
# save a checkpoint of a hundred gigabytes.
run() {
    local name=$1 job status=0 deadline=$((SECONDS + seconds)) file=$folder/$1/metrics.jsonl
    shift
    rm -rf "${folder:?}/$name"
    mpirun -n "$ranks" "$program" train --config input/llama3-8b.ini --run.dir="$folder/$name" --model.weights=random \
        --data.train="$tokens" --data.eval= --train.eval_every=0 --train.steps=1000 \
        --train.micro_batch=1 --train.global_batch="$ranks" --optimizer.warmup_steps=1 --checkpoint.every=0 \
        --log.trace=$((steps - 1)) "${common[@]}" "$@" >"$folder/$name.log" 2>&1 &
    job=$!
    while kill -0 "$job" 2>/dev/null && ((SECONDS < deadline)); do
        if [[ -e $file ]] && (($(wc -l <"$file") >= steps)); then
            end_run "$name"
            wait "$job" 2>/dev/null || true
            return 0
        fi
        sleep 0.5
    done
    end_run "$name"
    wait "$job" 2>/dev/null || status=$?
    echo "llampi: ended with status $status before step $steps" >>"$folder/$name.log"
    return 1
}

# tokens/s of a rank: the median of the steps from the fifth on that were not traced
speed() {
    awk -F '"step": *|"tokens_per_second_per_rank": *' -v traced=$((steps - 1)) '
        /tokens_per_second_per_rank/ && !/eval_loss/ {
            match($0, /"step": *[0-9]+/); step = substr($0, RSTART, RLENGTH); sub(/.*: */, "", step)
            match($0, /"tokens_per_second_per_rank": *[0-9.e+]+/); value = substr($0, RSTART, RLENGTH); sub(/.*: */, "", value)
            if (step >= 5 && step != traced) print value
        }' "$folder/$1/metrics.jsonl" | sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print 0 }'
}

# overlap NAME [SHARD_GROUP_SIZE]: of rank 0's trace, how long collectives took, how much of that no computation hid, and bytes x (n - 1) / n
# over time.
overlap() {
    awk -v group="${2:-$ranks}" 'BEGIN { RS = "\\{\"args\":" }
        function number(key) { return match($0, "\"" key "\":[0-9.e+-]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : 0 }
        function category() { return match($0, /"cat":"[a-z_0-9]+"/) ? substr($0, RSTART + 7, RLENGTH - 8) : "" }
        {
            what = category(); begin = number("ts"); end = begin + number("dur")
            if (what ~ /^(unshard|reduce|all_reduce)$/) {
                b[n] = begin; e[n] = end; ++n
                total += end - begin; time[what] += end - begin; bytes[what] += number("bytes")
            } else if (what ~ /^(forward|recompute|backward|update|norm|cast_params|cast_grads|transpose|fp8_cast)$/) {
                cb[m] = begin; ce[m] = end; ++m
            }
        }
        END {
            for (i = 0; i < n; ++i) for (k = 0; k < m; ++k) {
                from = b[i] > cb[k] ? b[i] : cb[k]; to = e[i] < ce[k] ? e[i] : ce[k]
                if (to > from) hidden += to - from
            }
            if (total == 0) { print "no collectives in the trace"; exit }
            printf "collectives %.1f ms, of which %.0f %% beside computation", total / 1000, 100 * hidden / total
            for (what in time) if (time[what] > 0 && what != "all_reduce")
                printf "; %s %.1f GB/s (bus)", what, bytes[what] * (group - 1) / group / time[what] / 1000
            print ""
        }' "$folder/$1/trace/rank-00000.json"
}

# first_error NAME: the line of its log that says why it failed
first_error() { grep -m 1 '^llampi: ' "$folder/$1.log" || tail -n 1 "$folder/$1.log"; }

echo "llampi on $ranks ranks ($("$program" --version | head -n 1)); Llama 3 8B unless another model was given, tokens/s of each rank"
if ! run base; then
    echo "the run without any key FAILED: $(first_error base) (log: $folder/base.log)" >&2
    exit 1
fi
grep -h '^device: ' "$folder/base.log" | head -n 1 || true
base=$(speed base)
begun=$SECONDS
if ! run again; then
    echo "the same run FAILED the second time: $(first_error again) (log: $folder/again.log)" >&2
    exit 1
fi
seconds=$((3 * (SECONDS - begun) + 30)) # a key with which a run hangs takes no time from the others
# A difference counts from a hundredth on, or from what two runs without any key differ by.
noise=$(awk -v a="$base" -v b="$(speed again)" 'BEGIN { d = a > b ? a / b - 1 : b / a - 1; print (d > 0.01 ? d : 0.01) }')
printf '%-44s %10.0f   %s\n' 'as it comes' "$base" "$(overlap base)" 'again' "$(speed again)" "$(overlap again)"
printf '%-44s %10s   %s\n' 'published: torchtitan, FSDP2 and compile' 6667 'Llama 3 8B, bfloat16, 8 x H100, sequences of 8192' \
    'published: llmq' 14000 '7B, bfloat16, 8 x H100, sequences of 1024: shorter ones, and fewer parameters'

# verdict NAME OPTION...: whether these keys gain more than noise
verdict() {
    verdict_against "$base" "$@" || true
}
# verdict_against TOKENS_PER_SECOND NAME OPTION...: likewise, beside another run than that without any key
verdict_against() {
    local against=$1 name=$2 value words group=$ranks
    shift 2
    if [[ $* =~ --fsdp.shard_group_size=([0-9]+) ]]; then group=${BASH_REMATCH[1]}; fi
    if ! run "$name" "$@"; then
        printf '%-44s %10s   %s\n' "${label:-$*}" FAILED "$(first_error "$name")"
        return 1
    fi
    value=$(speed "$name")
    words=$(awk -v value="$value" -v base="$against" -v noise="$noise" 'BEGIN {
        r = value / base; printf "x %.3f: %s", r, (r > 1 + noise ? "GAINS, turn it on" : (r < 1 - noise ? "loses, leave it off" : "no difference")) }')
    printf '%-44s %10.0f   %s; %s\n' "${label:-$*}" "$value" "$words" "$(overlap "$name" "$group")"
}
verdict nccl_sums --fsdp.reduction=nccl
verdict bfloat16_sums --fsdp.reduce_dtype=bfloat16
verdict window --fsdp.nccl_window=true
verdict copy_engines --fsdp.nccl_window=true --fsdp.nccl_copy_engines=true
verdict split_share --fsdp.nccl_split_share=true
# NCCL then adds no events to the graph of a step, and relies on there being one graph at a time.
label=NCCL_GRAPH_MIXING_SUPPORT=0 NCCL_GRAPH_MIXING_SUPPORT=0 verdict no_graph_mixing
# What multiprocessors left to collectives gain, beside the same number of CTAs without that.
case $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) in
    *A100*) multiprocessors=108 ;;
    *B200*) multiprocessors=148 ;;
    *) multiprocessors=132 ;; # H100 and H200
esac
for ctas in 8 16; do
    if verdict_against "$base" "ctas_$ctas" --fsdp.nccl_ctas="$ctas"; then
        verdict_against "$(speed "ctas_$ctas")" "product_sms_$((multiprocessors - ctas))" --fsdp.nccl_ctas="$ctas" --fsdp.product_sms=$((multiprocessors - ctas)) || true
    fi
done
verdict prefetch_4 --fsdp.limit_all_gathers=4
verdict fp8 --fsdp.product_dtype=fp8
verdict optimizer_over_replicas --fsdp.strategy=no_shard --fsdp.shard_optimizer_over_replicas=true
# Two groups, as if there were two nodes: what replicas cost, and a stream of their own beside that.
if ((ranks >= 4 && ranks % 2 == 0)); then
    hybrid=(--fsdp.strategy=hybrid_shard --fsdp.shard_group_size=$((ranks / 2)))
    if verdict_against "$base" hybrid "${hybrid[@]}"; then
        verdict_against "$(speed hybrid)" all_reduce_stream "${hybrid[@]}" --fsdp.all_reduce_stream=true || true
    fi
fi
