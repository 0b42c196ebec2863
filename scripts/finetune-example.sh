#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a small Llama on a text of sums, writes it as a Hugging Face folder, fine-tunes that on questions, and counts
# its right answers to others, before and after; then the same with LoRA. Each command is printed before it runs; everything goes to runs/sums.
# Running it again continues, or finds that it is done.
#
#   RANKS=N          default: 2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C # the order of files and the decimal point

llampi=${LLAMPI:-build/llampi}
ranks=${RANKS:-2}
if ! [[ $ranks =~ ^[1-9][0-9]*$ ]]; then
    echo "finetune-example: RANKS=$ranks is not a number of ranks; give one: make finetune RANKS=2" >&2
    exit 2
fi
folder=runs/sums

# shellcheck source=scripts/mpi-env.sh
source scripts/mpi-env.sh

say() { printf '\n== %s\n' "$*"; }
# Prints a command as it can be typed, and runs it.
run() {
    local word line="   "
    for word in "$@"; do
        if [[ $word == *[^a-zA-Z0-9_./=:-]* ]]; then word="\"$word\""; fi
        line+=" $word"
    done
    printf '%s\n' "$line"
    "$@"
}
# export_newest RUN FOLDER: writes the run's newest checkpoint as a Hugging Face folder, unless it is there from an earlier time.
export_newest() {
    local checkpoints=("$1"/checkpoints/step-*.h5)
    if [[ $2/model.safetensors -nt ${checkpoints[-1]} ]]; then return; fi
    rm -rf "$2"
    run "$llampi" export --checkpoint "${checkpoints[-1]}" --output "$2"
}

say "a small Llama learns a text of sums (input/sums/text.jsonl)"
run "$llampi" tokenize --tokenizer input/sums --format jsonl --output $folder/text.h5 input/sums/text.jsonl
run mpirun -n "$ranks" "$llampi" train --config input/sums-base.ini
export_newest $folder/base $folder/base-hf

say "its answers to questions (input/sums/heldout.jsonl) before fine-tuning"
run mpirun -n "$ranks" "$llampi" evaluate --weights $folder/base-hf --questions input/sums/heldout.jsonl

say "fine-tuning on other questions (input/sums/train.jsonl)"
for part in train heldout; do
    run "$llampi" tokenize --tokenizer $folder/base-hf --format chat --seq-len 128 --output $folder/$part.h5 input/sums/$part.jsonl
done
run mpirun -n "$ranks" "$llampi" train --config input/sums-chat.ini
export_newest $folder/chat $folder/chat-hf

say "its answers after fine-tuning"
run mpirun -n "$ranks" "$llampi" evaluate --weights $folder/chat-hf --questions input/sums/heldout.jsonl
run "$llampi" generate --weights $folder/chat-hf --chat --prompt "What is 23 + 45?"

say "the same with LoRA: adapters of 4 % of the parameters are trained instead"
run mpirun -n "$ranks" "$llampi" train --config input/sums-lora.ini
run mpirun -n "$ranks" "$llampi" evaluate --weights $folder/base-hf --adapter $folder/lora --questions input/sums/heldout.jsonl
run "$llampi" generate --weights $folder/base-hf --adapter $folder/lora --chat --temperature 0 --prompt "What is 23 + 45?"
