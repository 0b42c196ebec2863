#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# example_test.sh SOURCE LLAMPI: what `make run` calls, shortened to three steps, twice: the second time there is nothing left to do.
set -euo pipefail
source_dir=$1
export LLAMPI=$2 LLAMPI_TRAIN_STEPS=3 LLAMPI_TRAIN_EVAL_EVERY=0 LLAMPI_OPTIMIZER_WARMUP_STEPS=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RUN_DIR="$folder/a run" TEXT="$source_dir/LICENSE $source_dir/README.md"

"$source_dir/scripts/run-example.sh" | tee "$folder/first"
grep -aq "^step *3/3 " "$folder/first"
unigram=$(awk '/unigram model/{print $3}' "$folder/first")
model=$(awk '/this model/{print $3}' "$folder/first")
# Three steps from 5.5 nats: below the start, whatever the text.
awk -v u="$unigram" -v m="$model" 'BEGIN { exit !(u > 2 && u < 5 && m > 1 && m < 5.6) }'
# The sample may hold any byte.
sample=$(grep -a -A1 '^Sample again:$' "$folder/first" | tail -n 1)
words=()
eval "words=($sample)"
[[ ${words[0]} == "$LLAMPI" && -e ${words[3]} ]] || { echo "not a command: $sample" >&2; exit 1; }

"$source_dir/scripts/run-example.sh" | tee "$folder/second"
grep -aq "run already complete" "$folder/second"

# A text whose last tenth would begin within a character: it is in whole characters in both parts.
printf 'x%s' "$(printf 'ü%.0s' {1..6000})" >"$folder/text"
cat >"$folder/tokenize" <<'SH'
#!/usr/bin/env bash
for file; do :; done
cat "$file" >>"$0.given"
iconv -f UTF-8 -t UTF-8 "$file" >/dev/null && [[ $file == */train/* ]] # and the example ends
SH
chmod +x "$folder/tokenize"
status=0
RANKS=0 "$source_dir/scripts/run-example.sh" 2>"$folder/errors" || status=$?
((status == 2))
grep -q "^run-example: RANKS=0 is not a number of ranks" "$folder/errors"
if RUN_DIR=$folder/other TEXT=$folder/text LLAMPI=$folder/tokenize "$source_dir/scripts/run-example.sh" 2>"$folder/errors"; then exit 1; fi
cmp "$folder/errors" /dev/null
cmp "$folder/text" "$folder/tokenize.given"
