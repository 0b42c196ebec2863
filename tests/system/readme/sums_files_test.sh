#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sums_files_test.sh SOURCE LLAMPI PYTHON: the files of input/sums are what make.py writes, the program reads their tokenizer, and no
# held-out question is in what is trained on, in any wording or order.
set -euo pipefail
source_dir=$1 llampi=$2 python=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sums=$source_dir/input/sums

"$python" "$sums/make.py" "$folder"
for file in tokenizer.json tokenizer_config.json text.jsonl train.jsonl heldout.jsonl; do
    cmp "$folder/$file" "$sums/$file"
done

# 256 bytes, 51 merges, then the special tokens, and the ids of Hugging Face's tokenizers 0.22.2.
ids=$(printf 'What is 23 + 45?\n<|eot_id|>\nA\xc3\xa9\n' | "$llampi" tokenize --tokenizer "$sums" --print)
diff <(echo "$ids") <(printf '272 261 32 50 51 256 32 52 53 63\n311\n65 195 169\n')
grep -q '"vocab_size": 312$' "$sums/config.json"

# Both numbers of each sum, the smaller one first.
pairs() { sed -E 's/^[^0-9]*([0-9]+) \+ ([0-9]+).*/\1 \2/' "$@" | awk '{print ($1 < $2) ? $1 " " $2 : $2 " " $1}' | sort -u; }
pairs "$sums/heldout.jsonl" >"$folder/heldout"
[[ $(wc -l <"$folder/heldout") == 200 ]]
pairs "$sums/text.jsonl" "$sums/train.jsonl" >"$folder/trained"
[[ $(wc -l <"$folder/trained") == 3895 ]] # the others of 90 * 91 / 2
common=$(comm -12 "$folder/heldout" "$folder/trained")
if [[ -n $common ]]; then
    echo "trained on and held out: $common" >&2
    exit 1
fi
