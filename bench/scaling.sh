#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a run of more and more ranks costs each of them, on this machine, with a tiny model: docs/scaling.md.
#   bench/scaling.sh BUILD FOLDER RANKS...
# Prints, for each number of ranks: seconds of the whole run, to its first step, and after its last; seconds of processors (user and
# system) of all ranks, on which other programs have less influence; MiB of a rank (PSS: shared
# pages are divided among those who share them; and private; - if the run ended before it was looked at); messages, bytes and peers per rank, the most of any rank, as Open
# MPI's monitoring counts what travels point to point, also for its collectives. STEPS (3) steps.
set -euo pipefail
build=$(realpath "$1") folder=$2
shift 2
repository=$(realpath "$(dirname "$0")/..")
# shellcheck source=/dev/null
. "$repository/scripts/mpi-env.sh"
mkdir -p "$folder"
cd "$folder"

cat >config.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32"}
JSON
"$build/llampi" tokenize --tokenizer bytes --output data.h5 --overwrite "$repository/docs/"*.md >/dev/null

seconds_between() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b - a }'; }

TIMEFORMAT='%U %S'
printf '%6s %7s %7s %7s %7s %8s %8s %9s %9s %6s\n' ranks whole start end cpu pss private messages MB peers
for ranks in "$@"; do
    rm -rf run monitor log # a log of other ranks would be taken for this one
    mkdir monitor
    begin=$(date +%s.%N)
    # shellcheck disable=SC2086
    { time mpirun -n "$ranks" ${MONITOR:+--mca pml_monitoring_enable 1 --mca pml_monitoring_enable_output 3
        --mca pml_monitoring_filename monitor/m} ${MPIRUN_FLAGS:-} \
        "$build/llampi" train --run.dir=run --model.config=config.json --model.weights=random --data.train=data.h5 \
        --data.seq_len=32 --train.steps="${STEPS:-3}" --train.micro_batch=1 --train.global_batch="$ranks" --run.threads=1 \
        ${FLAGS:-} 2>&1 | while IFS= read -r line; do printf '%s %s\n' "$(date +%s.%N)" "$line"; done >log; } 2>cpu &
    pipeline=$!
    pss='' private=''
    while kill -0 "$pipeline" 2>/dev/null; do
        if grep -q ' step  *1/' log 2>/dev/null; then
            read -r pss private < <(
                pgrep -f 'llampi train --run.dir=run --model.config=config.json' | while read -r pid; do
                    [[ $(cat "/proc/$pid/comm" 2>/dev/null) == llampi && $(readlink "/proc/$pid/cwd") == "$PWD" ]] && cat "/proc/$pid/smaps_rollup" 2>/dev/null
                done | awk '/^Pss:/ { p += $2; n++ } /^Private_/ { q += $2 } END { if (n) printf "%.1f %.1f\n", p / n / 1024, q / n / 1024 }'
            ) || true
            [[ -z ${pss:-} ]] || break # all had ended, or one while it was read
        fi
        sleep 0.1
    done
    wait "$pipeline" || { tail -5 log; exit 1; }
    end=$(date +%s.%N)
    first=$(awk '/ step +1\// { print $1; exit }' log)
    last=$(awk -v s="${STEPS:-3}" '$0 ~ " step +" s "/" { print $1; exit }' log)
    traffic=$({ cat monitor/m* 2>/dev/null || true; } | awk '$1 == "E" || $1 == "I" { m[$2] += $6; b[$2] += $4; p[$2]++ }
        END { for (r in m) { if (m[r] > mm) mm = m[r]; if (b[r] > bb) bb = b[r]; if (p[r] > pp) pp = p[r] }
              printf "%d %.2f %d", mm, bb / 1e6, pp }')
    # shellcheck disable=SC2086
    printf '%6s %7s %7s %7s %7s %8s %8s %9s %9s %6s\n' "$ranks" "$(seconds_between "$begin" "$end")" \
        "$(seconds_between "$begin" "${first:-0}")" "$(seconds_between "${last:-0}" "$end")" "$(awk 'END { printf "%.1f", $1 + $2 }' cpu)" "${pss:--}" "${private:--}" ${traffic:-0 0 0}
done
