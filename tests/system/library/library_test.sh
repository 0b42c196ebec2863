#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# library_test.sh SOURCE BUILD CMAKE MPIEXEC C++: installs llampi into a folder, moves that elsewhere, and there builds and runs what
# uses the library: both examples, a project of ten lines, and a program that is compiled with pkg-config alone.
set -euo pipefail
source_dir=$1 build=$2 cmake=$3 mpiexec=$4 cxx=$5
unset LLAMPI_PLUGIN_DIR # nothing of the build folder
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
    echo "FAILED: $1" >&2
    exit 1
}

DESTDIR=$folder/stage "$cmake" --install "$build" --prefix /opt/llampi >/dev/null
mkdir "$folder/moved"
mv "$folder/stage/opt/llampi" "$folder/moved/llampi"
prefix=$folder/moved/llampi
package=$(dirname "$(find "$prefix" -name llampiConfig.cmake)")
if grep -rnF -e "$build" -e "$source_dir" -e /opt/llampi -e "$folder" "$package" "$package/../../pkgconfig"; then
    fail "the package names a folder that will not be there"
fi

# The program finds libraries that are in none of the system's folders where the build found them.
run_path() { readelf -d "$1" | sed -n 's/.*R.*PATH.*\[\(.*\)\]/\1/p' | tr ':' '\n' | sed '/^$/d'; }
[[ $(run_path "$prefix/bin/llampi") == "$(run_path "$build/llampi")" ]] || fail "the installed program searches libraries elsewhere: $(run_path "$prefix/bin/llampi")"

# project FOLDER NAME: builds it as its own README or first lines say, with warnings as errors, and quickly.
project() {
    "$cmake" -S "$1" -B "$folder/$2" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
        -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" -DCMAKE_CXX_FLAGS_RELEASE=-O1 >"$folder/log" || { cat "$folder/log"; fail "$2"; }
    "$cmake" --build "$folder/$2" --parallel 2 >"$folder/log" || { cat "$folder/log"; fail "$2"; }
}
cp -r "$source_dir/examples" "$source_dir/tests/system/library/third_party" "$folder"
project "$folder/examples/custom_model" custom_model
project "$folder/examples/evaluate" evaluate
project "$folder/third_party" third
cd "$folder"

# ---- ten lines ----
version=$("$prefix/bin/llampi" --version | head -n 1)
said=$(third/third_party)
[[ $version == "${said% *} ("* ]] || fail "the library says '$said', the program '$version'"
lines=$(cat third_party/* | grep -cv SPDX)
((lines == 10)) || fail "the project of ten lines has $lines"
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$package/../../pkgconfig
    read -r -a flags <<<"$(pkg-config --cflags --libs llampi)"
    "$cxx" third_party/main.cpp -o by_pkg_config "${flags[@]}"
    [[ $(./by_pkg_config) == "$said" ]] || fail "pkg-config"
fi

# ---- a model of one's own: it has learnt, and the checkpoint has it ----
"$mpiexec" -n 2 custom_model/custom_model model.h5 | tee custom.log
awk '/^step 20:/ { first = $4 + 0 } /^step 100:/ { last = $4 + 0 } END { exit !(last > 0 && last < 0.7 * first) }' custom.log ||
    fail "the custom model did not learn"
"$prefix/bin/llampi" inspect model.h5 | grep -q "parameters  *28,672" || fail "the custom model's checkpoint"
status=0
"$prefix/bin/llampi" generate --weights model.h5 --prompt a 2>error || status=$?
[[ $status == 2 && $(<error) == "llampi: --weights model.h5 is not a checkpoint of a Llama model: another program saved its own model in it" ]] ||
    fail "a model that is no Llama: status $status, $(<error)"
(($(grep -cv SPDX examples/custom_model/custom_model.cpp) < 150)) || fail "the custom model has 150 lines or more"

# ---- weights of a checkpoint and of a Hugging Face folder ----
cat >config.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
 "hidden_act": "silu", "tie_word_embeddings": false}
JSON
head -c 4000 "$source_dir/LICENSE" >text
llampi=$prefix/bin/llampi
"$llampi" tokenize --tokenizer bytes --output tokens.h5 text >log
"$llampi" train --run.dir=run --run.device=cpu --model.config=config.json --data.train=tokens.h5 --data.seq_len=32 \
    --train.steps=2 --train.micro_batch=1 --train.global_batch=1 --optimizer.warmup_steps=0 >log 2>&1 || { cat log; fail "training"; }
checkpoint=run/checkpoints/step-00000002.h5
"$llampi" export --checkpoint "$checkpoint" --output folder >log 2>&1
expected=$("$llampi" evaluate --device cpu --weights "$checkpoint" --data tokens.h5 --seq-len 32 | sed -n 's/^loss \([0-9.]*\),.*/\1/p')
for weights in "$checkpoint" folder; do
    loss=$(evaluate/evaluate "$weights" tokens.h5 32)
    echo "$weights: $loss"
    [[ $loss == "loss $expected over "* ]] || fail "llampi evaluate says $expected"
done
status=0
evaluate/evaluate /nowhere tokens.h5 32 2>log || status=$?
[[ $status == 2 && $(<log) == "evaluate: /nowhere"* ]] || fail "weights that are not there: status $status, $(<log)"
loss=$("$mpiexec" -n 2 evaluate/evaluate folder tokens.h5 32)
[[ $loss == "loss $expected over "* ]] || fail "llampi evaluate says $expected, the example on two ranks $loss"
status=0
timeout 60 "$mpiexec" -n 1 evaluate/evaluate folder tokens.h5 32 : -n 1 evaluate/evaluate folder /nowhere.h5 32 >log 2>&1 || status=$?
grep -q "^evaluate: .*/nowhere.h5: no such file" log || fail "data that one rank lacks: status $status, $(<log)"
