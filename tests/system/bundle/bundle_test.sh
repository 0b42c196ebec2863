#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bundle_test.sh SOURCE BUILD: makes the bundle, moves it into a folder with a space in its name, and uses it there without the
# environment of this shell. Every library that a process of it loads must be the bundle's own, or one of the few that are
# the machine's. Exit status 77: there is no patchelf to make it with.
set -euo pipefail
source_dir=$1 build=$2
command -v patchelf >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
    echo "bundle_test: $1" >&2
    exit 1
}

"$source_dir/scripts/make-bundle.sh" "$build" "$folder/made"
archive=("$folder"/made/llampi-*.tar.gz)
bytes=$(stat -c %s "${archive[0]}")
((bytes > 4000000 && bytes <= 60 * 1048576)) || fail "it has $bytes bytes packed"
mkdir "$folder/another place" "$folder/work"
tar -xf "${archive[0]}" -C "$folder/another place"
rm -rf "$folder/made"
bundle=$(echo "$folder/another place"/llampi-*)
ln -s "$bundle/bin/llampi" "$folder/work/llampi-by-link"
cd "$folder/work"

# As a shell that has never heard of it; the loader writes down which libraries each process loads.
clean() { env -i PATH=/usr/bin:/bin HOME="$folder/work" TMPDIR="$folder/work" OMP_NUM_THREADS=1 "$@"; }
watched() { clean LD_DEBUG=files LD_DEBUG_OUTPUT="$folder/loaded" "$@"; }

# ---- what it needs, as the files say -------------------------------------------------------------------------------

of_the_machine() { # C and C++ library; CUDA's, which only the plugin needs
    [[ $1 =~ ^(ld-linux-x86-64|linux-vdso|lib(c|m|dl|pthread|rt|resolv|util|stdc\+\+|gcc_s|nss_[a-z]+))\.so ]] ||
        [[ $1 =~ ^lib(cublas|cublasLt|cudnn|cudnn_[a-z_]+|nccl|nvrtc)\.so ]]
}
mapfile -d '' files < <(find "$bundle/libexec" "$bundle/lib" -type f ! -path '*/fallback/*' -print0)
checked=0
for file in "${files[@]}"; do
    [[ $(head -c 4 "$file" | tail -c 3 | tr -d '\0') == ELF ]] || continue
    while IFS=' ' read -r name path; do
        if [[ $(realpath -m -- "$path") != "$bundle"/lib/* ]] && ! of_the_machine "$name"; then
            fail "${file#"$bundle"/} needs $name, which is ${path:-nowhere}"
        fi
    done < <(clean ldd "$file" | sed -n 's/^\s*\(\S*\) => \(.*\) (0x.*/\1 \2/p; s/^\s*\(\S*\) => not found/\1/p')
    path=$(readelf -dW "$file" | sed -n 's/.*(\(RPATH\|RUNPATH\)).*\[\(.*\)\]/\1 \2/p')
    # shellcheck disable=SC2016 # it is for the loader
    [[ $path =~ ^'RPATH $ORIGIN/'[./a-z]+$ ]] || fail "${file#"$bundle"/} has the run path $path"
    ((checked += 1))
done
((checked > 50)) || fail "only $checked programs and libraries were looked at"
for license in libopenmpi3 libstdc++6; do
    [[ ! -e /usr/share/doc/$license || -s $bundle/licences/$license ]] || fail "no licence of $license"
done

# ---- what it does --------------------------------------------------------------------------------------------------

mkdir "$folder/bin"
printf '#!/bin/sh\n' >"$folder/bin/nvidia-smi" # a sign of a GPU: the CUDA libraries are looked for
chmod +x "$folder/bin/nvidia-smi"
clean PATH="$folder/bin:/usr/bin:/bin" "$bundle/bin/llampi" --version 2>complaints
[[ ! -s complaints ]] || fail "$(cat complaints)"
watched "$bundle/bin/llampi" --version | tee version
grep -q "^MPI  *Open MPI v4" version
watched ./llampi-by-link plan --config "$bundle/input/llama3-8b.ini" --model.config="$bundle/input/llama3-8b" --ranks 8 >planned
grep -q GiB planned
head -c 40000 "$source_dir/LICENSE" "$source_dir"/docs/*.md >text
watched ./llampi-by-link tokenize --tokenizer bytes --output tokens.h5 text
# More ranks than cores may be there.
watched OMPI_MCA_rmaps_base_oversubscribe=1 "$bundle/bin/mpirun" -n 2 ./llampi-by-link train --config "$bundle/input/small.ini" \
    --run.dir=run --model.config="$bundle/input/small" --data.train=tokens.h5 --data.eval= --train.eval_every=0 \
    --train.steps=3 --train.micro_batch=1 --train.global_batch=2 --data.seq_len=64 --optimizer.warmup_steps=1 | tee train
[[ $(wc -l <run/metrics.jsonl) == 3 && -s run/checkpoints/step-00000003.h5 ]] || fail "it did not train three steps"
watched ./llampi-by-link generate --weights run/checkpoints/step-00000003.h5 --prompt "The " --max-tokens 5

# Whether a program of the bundle loaded this. A file begins with the shell of the starter, which becomes that program.
loaded_by_us() {
    awk -v path="calling init: $1" '
        FNR == 1 { ours = seen = 0 }
        index($0, path) { if (ours) found = 1; else seen = 1 }
        /transferring control:/ { ours = /\/llampi-[^ ]*\/libexec\//; if (ours && seen) found = 1; seen = 0 }
        END { exit !found }' "$folder"/loaded.*
}
loaded=$(sed -n 's/.*calling init: //p' "$folder"/loaded.* | sort -u)
for own in libopen-rte.so.40 libmpi.so.40 libhdf5_openmpi.so.103 openmpi/mca_io_romio321.so; do
    grep -q "/llampi-[^ ]*/lib/$own" "$folder"/loaded.* || fail "lib/$own was not used"
done
while IFS= read -r path; do
    name=$(basename "$path")
    if [[ $(realpath -- "$path") == "$bundle"/* ]] || of_the_machine "$name"; then continue; fi
    if [[ $name =~ ^lib(tinfo|selinux|pcre2-8|readline|acl|attr)\.so ]] && ! loaded_by_us "$path"; then continue; fi # the shell's
    fail "$path was loaded"
done <<<"$loaded"

# ---- the GPU tests say what is wrong where there is no GPU ---------------------------------------------------------

if [[ ! -e /dev/nvidiactl && ! -e /dev/dxg ]]; then
    status=0
    clean "$bundle/run-gpu-tests" program tests >output 2>&1 || status=$?
    cat output
    ((status == 1)) || fail "run-gpu-tests ended with $status without a GPU"
    grep -q '^test_gpu  *FAIL .*no GPU to test' output || fail "run-gpu-tests does not say what is wrong"
    tail -n 1 output | grep -q FAILED
fi
