#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a small Llama on text that is on this machine, compares it with a unigram model on held-out text,
# and samples from it. Running it again resumes, or says that it is done.
#
#   TEXT="FILE..."   text to train on; default: the licences in /usr/share/common-licenses
#   RUN_DIR=FOLDER   where everything is written; default: runs/example
#   CONFIG=FILE      configuration; default: input/small.ini
#   RANKS=N          default: 2
#   PROMPT=TEXT      what the sample begins with
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C # the order of files and the decimal point

llampi=${LLAMPI:-build/llampi}
run_dir=${RUN_DIR:-runs/example}
config=${CONFIG:-input/small.ini}
ranks=${RANKS:-2}
prompt=${PROMPT:-The }
data=$run_dir/data

# shellcheck source=scripts/mpi-env.sh
source scripts/mpi-env.sh

say() { printf '\n== %s\n' "$*"; }
fail() {
    echo "run-example: $1" >&2
    exit 2
}

if [[ -e $run_dir && ! -d $run_dir ]]; then fail "$run_dir is not a folder; give another: make run RUN_DIR=FOLDER"; fi
if ! [[ $ranks =~ ^[1-9][0-9]*$ ]]; then fail "RANKS=$ranks is not a number of ranks; give one: make run RANKS=2"; fi

# ---- text: the last tenth is held out --------------------------------------------------------------------------

read -r -a inputs <<<"${TEXT:-}"
if ((${#inputs[@]} == 0)); then
    inputs=(/usr/share/common-licenses/*)
    [[ -e ${inputs[0]} ]] || fail "there is no text in /usr/share/common-licenses; give some: make run TEXT=\"FILE...\""
fi
for file in "${inputs[@]}"; do
    [[ -f $file && -r $file ]] || fail "$file is not a readable file; give text files: make run TEXT=\"FILE...\""
done
# Some of the licences are links to others: each text counts once.
mapfile -t inputs < <(readlink -f -- "${inputs[@]}" | awk '!seen[$0]++')

total_bytes=$(cat -- "${inputs[@]}" | wc -c)
train_bytes=$((total_bytes * 9 / 10))
((total_bytes >= 10000)) || fail "only $total_bytes bytes of text; give at least 10000: make run TEXT=\"FILE...\""
checksum=$(cat -- "${inputs[@]}" | cksum)

if [[ -e $data/checksum && $(<"$data/checksum") != "$checksum" ]]; then
    fail "$run_dir was trained on another text; remove it, or give another folder: make run${TEXT:+ TEXT=\"$TEXT\"} RUN_DIR=FOLDER"
fi

if [[ -e $data && ! -e $data/checksum ]]; then
    fail "$data is not from this script; give another folder: make run RUN_DIR=FOLDER"
fi

if [[ ! -e $data ]]; then
    say "tokenizing $total_bytes bytes of ${#inputs[@]} files into $data"
    new=$data.tmp # gets its own name when it is whole
    rm -rf "$new"
    mkdir -p "$new/train" "$new/heldout"
    # Each file stays a document; the one across the border is cut in two.
    offset=0
    number=1000
    for file in "${inputs[@]}"; do
        size=$(wc -c <"$file")
        keep=$((train_bytes - offset))
        if ((0 < keep && keep < size)); then # not within a character of UTF-8, whose further bytes are 128 to 191
            for byte in $(od -An -v -tu1 -j "$keep" -N 3 -- "$file"); do
                if ((byte < 128 || byte > 191)); then break; fi
                keep=$((keep + 1))
            done
        fi
        name=$((number += 1))-$(basename -- "$file")
        if ((keep > 0)); then head -c "$keep" -- "$file" >"$new/train/$name"; fi
        if ((keep < size)); then tail -c "+$(((keep > 0 ? keep : 0) + 1))" -- "$file" >"$new/heldout/$name"; fi
        offset=$((offset + size))
    done
    for part in train heldout; do
        "$llampi" tokenize --tokenizer bytes --format text --output "$new/$part.h5" "$new/$part"/*
    done
    echo "$checksum" >"$new/checksum"
    mv "$new" "$data"
fi

# ---- train -----------------------------------------------------------------------------------------------------

say "training on $ranks ranks: $config"
status=0
mpirun -n "$ranks" "$llampi" train --config "$config" --run.dir="$run_dir" \
    --data.train="$data/train.h5" --data.eval="$data/heldout.h5" || status=$?
if ((status == 75)); then echo "stopped early, state saved in $run_dir; the same command continues" >&2; fi
if ((status != 0)); then exit "$status"; fi

checkpoints=("$run_dir"/checkpoints/step-*.h5)
checkpoint=${checkpoints[-1]}
[[ -e $checkpoint ]] || fail "training left no checkpoint in $run_dir/checkpoints"

seq_len=$(sed -n 's/^ *seq_len *= *\([0-9]*\).*/\1/p' "$run_dir/config.ini")

# ---- evaluate and sample ---------------------------------------------------------------------------------------

# Nats per byte of a model that knows only how often each byte occurs in the training text (one added to each count).
unigram=$(
    {
        cat "$data/train"/* | od -An -v -tu1 -w1
        echo heldout
        cat "$data/heldout"/* | od -An -v -tu1 -w1
    } | awk '
        $1 == "heldout" { second = 1; next }
        !second         { count[$1]++; n++; next }
                        { heldout[$1]++; m++ }
        END {
            for (byte in heldout) loss -= heldout[byte] * log((count[byte] + 1) / (n + 256))
            printf "%.4f", loss / m
        }'
)
model=$("$llampi" evaluate --weights "$checkpoint" --data "$data/heldout.h5" --seq-len "$seq_len" --json |
    sed -n 's/.*"loss" *: *\([-+0-9.eE]*\).*/\1/p')

say "held-out loss, nats per byte"
printf '   unigram model  %s\n   this model     %.4f\n' "$unigram" "$model"

say "sample"
"$llampi" generate --weights "$checkpoint" --prompt "$prompt" --max-tokens 200
echo

say "where things are"
cat <<END
   $run_dir/config.ini        the configuration as it was resolved
   $run_dir/metrics.jsonl     one line per step
   $checkpoint   parameters and optimizer state, HDF5
   $data/        the text and its tokens
Sample again:
   $(printf '%q ' "$llampi" generate --weights "$checkpoint")--prompt "Permission to " --max-tokens 200
END
