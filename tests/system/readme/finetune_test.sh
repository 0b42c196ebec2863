#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# finetune_test.sh SOURCE LLAMPI [STEPS]: what `make finetune` calls, in an empty folder. What it prints and runs are the commands of
# docs/fine-tuning.md. With STEPS both trainings are so short, and only 20 questions are asked; without, all of it must
# bring the right answers from under 5 % to over 90 %.
set -euo pipefail
source_dir=$1 llampi=$2 steps=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir build input
ln -s "$llampi" build/llampi
ln -s "$source_dir/scripts" .
ln -s "$source_dir"/input/*.ini input
cp -r "$source_dir/input/sums" input
if [[ -n $steps ]]; then
    export LLAMPI_TRAIN_STEPS=$steps LLAMPI_TRAIN_EVAL_EVERY=0 LLAMPI_OPTIMIZER_WARMUP_STEPS=0
    head -n 20 "$source_dir/input/sums/heldout.jsonl" >input/sums/heldout.jsonl
fi
fail() {
    echo "$1" >&2
    exit 1
}

env -u LLAMPI -u RANKS scripts/finetune-example.sh | tee output

# Without what prepares a test of the page; commands of several lines as one; the number of steps may be another.
sed '/^<!-- setup/,/^-->/d' "$source_dir/docs/fine-tuning.md" | sed -E ':a; /\\$/ { N; s/ *\\\n */ /; ba }' | grep -E '^(build|mpirun).*sums' |
    sed 's/^/    /' >shown
grep -E '^    (build|mpirun)' output >printed
diff <(sed -E 's/step-[0-9]+/step-N/' shown) <(sed -E 's/step-[0-9]+/step-N/' printed) >&2 || fail "docs/fine-tuning.md shows other commands"

count=$(wc -l <input/sums/heldout.jsonl)
mapfile -t right < <(sed -n "s/^accuracy .*: \([0-9]*\) of $count questions answered right\$/\1/p" output)
((${#right[@]} == 3)) || fail "there should be three counts of right answers to $count questions"
[[ -s runs/sums/chat-hf/model.safetensors && -s runs/sums/chat-hf/tokenizer.json ]] || fail "chat-hf is not whole"
if [[ -z $steps ]]; then
    ((right[0] * 20 < count)) || fail "too many right answers before fine-tuning: ${right[0]}"
    ((right[1] * 10 > count * 9)) || fail "too few right answers after fine-tuning: ${right[1]}"
    ((right[2] * 10 > count * 9)) || fail "too few right answers with adapters: ${right[2]}"
    cmp <(tail -n 1 output) <(echo 68) >&2
    sed -nE 's/^.*model: ([0-9,]*) parameters \(([0-9,]*) trained[;)].*/\1 \2/p' output | tr -d , |
        awk '{ found = 1; if ($2 * 20 >= $1) exit 1 } END { exit !found }' || fail "adapters are not under 5 % of the parameters"
else
    # Fine-tuning began with the weights that were exported: random ones begin within 0.5 of ln 312 = 5.74.
    loss=$(sed -n 's/^{"step": 1, "loss": \([0-9.]*\),.*/\1/p' runs/sums/chat/metrics.jsonl)
    echo "first loss of fine-tuning: $loss"
    awk -v loss="$loss" 'BEGIN { exit !(loss > 0 && (loss < 5.2 || loss > 6.3)) }' || fail "the first loss is that of random weights: $loss"
fi
