#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fp8_convergence.sh LLAMPI [FOLDER [SEEDS]]: trains the two examples (sums with their fine-tuning, texts of licences) in bfloat16 and with
# products in FP8 (fsdp.product_dtype = fp8) from several seeds, and compares final losses and accuracy: half an hour on two cores. Prints
# tables and two verdicts; exit status 1 if one is bad. STEPS ends each run after so many steps. Running it again continues. From the root of the
# source, after scripts/mpi-env.sh.
set -euo pipefail
llampi=$1 folder=${2:-runs/fp8_convergence} seeds=${3:-"0 1 2"}
export LC_ALL=C
at_most=(${STEPS:+--train.steps="$STEPS"})
mkdir -p "$folder"

train() { # RUN OPTION...
    local run=$1
    shift
    mpirun -n 2 "$llampi" train --run.dir="$folder/$run" --fsdp.param_dtype=bfloat16 --log.every=100 "$@" "${at_most[@]}" >>"$folder/$run.log" 2>&1 || {
        tail -n 5 "$folder/$run.log" >&2
        exit 1
    }
}
# The mean loss of the last 50 steps: one batch says little.
final_loss() {
    grep -o '"loss": [0-9.e-]*' "$folder/$1/metrics.jsonl" | tail -n 50 | awk '{ sum += $2 } END { printf "%.5f", sum / NR }'
}
eval_loss() { grep -o '"eval_loss": [0-9.e-]*' "$folder/$1/metrics.jsonl" | tail -n 1 | awk '{ printf "%.5f", $2 }'; }

"$llampi" tokenize --tokenizer input/sums --format jsonl --overwrite --output "$folder/text.h5" input/sums/text.jsonl >"$folder/log" 2>&1
for part in train heldout; do
    "$llampi" tokenize --tokenizer input/sums --format chat --seq-len 128 --overwrite --output "$folder/$part.h5" input/sums/$part.jsonl \
        >>"$folder/log" 2>&1
done
cat /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/Apache-2.0 /usr/share/common-licenses/MPL-2.0 >"$folder/licences.txt"
"$llampi" tokenize --tokenizer bytes --held-out 0.1 --overwrite --output "$folder/licences.h5" "$folder/licences.txt" >>"$folder/log" 2>&1 ||
    "$llampi" tokenize --tokenizer bytes --overwrite --output "$folder/licences.h5" "$folder/licences.txt" >>"$folder/log" 2>&1

: >"$folder/results"
for seed in $seeds; do
    for products in auto fp8; do
        name=$products-$seed
        train "base-$name" --config input/sums-base.ini --data.train="$folder/text.h5" --run.seed="$seed" --fsdp.product_dtype=$products
        train "chat-$name" --config input/sums-chat.ini --model.weights="$folder/base-$name" --data.train="$folder/train.h5" \
            --data.eval="$folder/heldout.h5" --run.seed="$seed" --fsdp.product_dtype=$products
        train "text-$name" --config input/small.ini --data.train="$folder/licences.h5" --data.eval= --train.eval_every=0 --run.seed="$seed" \
            --train.steps=100 --fsdp.product_dtype=$products
        right=$(mpirun -n 2 "$llampi" evaluate --weights "$folder/chat-$name" --questions input/sums/heldout.jsonl --json 2>>"$folder/log" |
            grep -o '"correct": *[0-9]*' | grep -o '[0-9]*')
        echo "$products $seed $(final_loss "base-$name") $(eval_loss "chat-$name") $right $(final_loss "text-$name")" | tee -a "$folder/results"
    done
done

echo
awk '
    { n[$1]++; base[$1] += $3; chat[$1] += $4; right[$1] += $5; text[$1] += $6
      if (!($1 in low) || $5 < low[$1]) low[$1] = $5
      if ($5 > high[$1]) high[$1] = $5 }
    function differ(name, a, b) {
        d = 100 * (b / a - 1)
        printf "| %s | %.5f | %.5f | %+.2f %% |\n", name, a, b, d
        if (d > 0.5) bad = 1
    }
    END {
        print "| mean over seeds | bfloat16 | fp8 | |"
        print "|---|---:|---:|---:|"
        differ("loss, sums", base["auto"] / n["auto"], base["fp8"] / n["fp8"])
        differ("loss, licences", text["auto"] / n["auto"], text["fp8"] / n["fp8"])
        printf "| loss of held-out answers | %.5f | %.5f | |\n", chat["auto"] / n["auto"], chat["fp8"] / n["fp8"]
        printf "| right answers | %.1f (%d to %d) | %.1f (%d to %d) | |\n", right["auto"] / n["auto"], low["auto"], high["auto"],
            right["fp8"] / n["fp8"], low["fp8"], high["fp8"]
        print ""
        print "losses within 0.5 %: " (bad ? "no" : "yes")
        inside = right["fp8"] / n["fp8"] >= low["auto"]
        print "right answers within the spread of bfloat16: " (inside ? "yes" : "no")
        exit bad || !inside
    }' "$folder/results"
