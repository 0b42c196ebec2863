#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# faults_test.sh SOURCE LLAMPI FAULTY_IO: `llampi check` with a configuration, on two ranks, with a fault each time: it is named, the status
# is 1, and nothing is left. Checks of speed are not judged where they are not asked for: tests share the cores.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
faulty_io=$3
prepare "$1" "$2"
keys=(--model.config=config.json --data.train=train.h5 --data.seq_len=16 --train.steps=12 --train.global_batch=12 --run.dir=run)

# check COMMAND...: its output and status, in $output and $status
check() {
    status=0
    output=$("$@" 2>&1) || status=$?
}
complain() {
    printf '%s\nstatus %d: %s\n' "$output" "$status" "$*" >&2
    exit 1
}
# expect VERDICT NAME PATTERN
expect() {
    grep -qE "^$1  $2 +.*$3" <<<"$output" || complain "no line: $1 $2 $3"
}
# On two ranks, of which other processes may slow one down.
expect_nothing_but_slow_ranks() {
    local failed
    failed=$(grep -E '^FAIL' <<<"$output" | grep -vE '^FAIL  (products|links|saving) ') || true
    [[ -z $failed && $output == *" checkpoint "* ]] || complain "$1"
}
# Nothing but what there was; $1 is what may be there besides.
expect_nothing_left() {
    local left
    left=$(find . -mindepth 1 ! -path './other*' ! -name config.json ! -name train.h5 ! -name free | sort)
    [[ -z $left ]] || complain "left are $left"
}
on_two() { mpirun -n 2 "$llampi" check "${keys[@]}" --skip-arithmetic "$@"; }

check "$llampi" check "${keys[@]}"
((status == 0)) || complain "nothing is wrong"
for name in arithmetic program data products steps memory room checkpoint; do expect PASS $name ''; done
for name in links replicas saving; do expect SKIP $name ''; done
expect_nothing_left

# Each rank in a folder of its own, where the data is another file, or is not.
mkdir other
cp config.json other
head -c 5000 "$source_dir/LICENSE" >other.txt
"$llampi" tokenize --tokenizer bytes --output other/train.h5 other.txt >/dev/null
check mpirun -n 1 "$llampi" check "${keys[@]}" --skip-arithmetic : -n 1 -wdir "$PWD/other" "$llampi" check "${keys[@]}" --skip-arithmetic
((status == 1)) || complain "other data"
expect FAIL data "rank 1 on .* reads another data.train than the other ranks \(5,000 tokens in .* instead of [0-9,]+ tokens"
expect SKIP checkpoint "not checked after this failure"
rm other/train.h5
check mpirun -n 1 "$llampi" check "${keys[@]}" --skip-arithmetic : -n 1 -wdir "$PWD/other" "$llampi" check "${keys[@]}" --skip-arithmetic
((status == 1)) || complain "missing data"
expect FAIL data "rank 1 on .* cannot read what the others read: .*train.h5"

# Each rank with a copy of the weights of its own, of which one has another byte.
"$llampi" train "${keys[@]}" --run.dir=other/run --train.steps=1 >/dev/null
for copy in mine theirs; do
    mkdir other/$copy
    cp config.json train.h5 other/$copy
    "$llampi" export --checkpoint other/run/checkpoints/step-00000001.h5 --output other/$copy/model >/dev/null
done
check_copies() {
    check mpirun -n 1 -wdir "$PWD/other/mine" "$llampi" check "${keys[@]}" --run.dir="$PWD/run" --model.weights=model --skip-arithmetic : \
        -n 1 -wdir "$PWD/other/theirs" "$llampi" check "${keys[@]}" --run.dir="$PWD/run" --model.weights=model --skip-arithmetic
}
check_copies
expect_nothing_but_slow_ranks "copies with the same bytes"
expect PASS weights "the same bytes on 1 node: .* in 1 file of model"
printf '?' | dd of=other/theirs/model/model.safetensors bs=1 seek=4000 conv=notrunc status=none
check_copies
((status == 1)) || complain "other weights"
expect FAIL weights "rank 1 on .* has other bytes in model/model.safetensors; copy the files there again"
expect SKIP checkpoint "not checked after this failure"

# What a check that was killed has left goes with the next one.
true &
killed=$!
wait $killed
start=$(cut -d- -f1 /proc/sys/kernel/random/boot_id) space=$(readlink /proc/self/ns/pid | tr -dc 0-9)
left=check.llampi-$(uname -n)-$start-$space-$killed-00000000.tmp
mkdir -p "$left/checkpoints"
cp train.h5 "$left/checkpoints/step-00000004.h5"
check "$llampi" check "${keys[@]}" --skip-arithmetic
((status == 0)) || complain "after one that was killed"
expect_nothing_left

# A mistake on all ranks is the user's.
check on_two --data.train=none.h5
((status == 2)) || complain "data that is not there"
[[ $(grep -c '^llampi: ' <<<"$output") == 1 && $output == *none.h5* ]] || complain "one sentence"

check on_two --optimizer.lr=1e38
((status == 1)) || complain "not a number"
expect FAIL steps "the loss or the gradient is not finite at step 2 of 4: .*lower optimizer.lr"

# No room for one, for two of three.
echo "run 1000" >free
mkdir run
check env FREE_BYTES="$PWD/free" LD_PRELOAD="$faulty_io" mpirun -n 2 "$llampi" check "${keys[@]}" --skip-arithmetic
((status == 1)) || complain "no room"
expect FAIL room "no room for a checkpoint of this model: it needs .*, and 1000 B are free in run/checkpoints.*; make room there"
expect SKIP checkpoint "there is no room for one"
echo "run 600000" >free
check env FREE_BYTES="$PWD/free" LD_PRELOAD="$faulty_io" mpirun -n 2 "$llampi" check "${keys[@]}" --checkpoint.every=2 --skip-arithmetic
((status == 1)) || complain "little room"
expect FAIL room "there is no room for all checkpoints of this run: .*; checkpoint.keep = 1 would fit"
expect PASS checkpoint ''
# A second folder: for the one that run.dir has no room for, and without room of its own, which does not keep a checkpoint from run.dir.
echo "run 1000" >free
check env FREE_BYTES="$PWD/free" LD_PRELOAD="$faulty_io" "$llampi" check "${keys[@]}" --checkpoint.fallback_dir=not/there --skip-arithmetic
((status == 1)) || complain "room elsewhere"
expect FAIL room "there is no room for a checkpoint: it needs .*; until there is, they go to not/there/.*"
expect SKIP checkpoint "there is no room for one"
[[ ! -e not ]] || complain "checkpoint.fallback_dir was made"
mkdir elsewhere
printf 'run 600000\nelsewhere 1000\n' >free
check env FREE_BYTES="$PWD/free" LD_PRELOAD="$faulty_io" "$llampi" check "${keys[@]}" --checkpoint.fallback_dir=elsewhere --checkpoint.every=2 --skip-arithmetic
((status == 1)) || complain "no room elsewhere"
expect FAIL room "there is no room for all checkpoints of this run: .*; and checkpoint.fallback_dir has no room for a checkpoint either: 1000 B are free in elsewhere, .*"
expect PASS checkpoint ''
rmdir run elsewhere

# Checkpoints that take longer than the steps between them, on a disk that takes two seconds for one write; without it, a busy disk may take more than a second.
check on_two --checkpoint.every=2
expect_nothing_but_slow_ranks "saving in less than a second"
expect "(PASS|FAIL)" saving "a checkpoint takes [0-9.e-]+ s, and the 2 steps between two checkpoints take [0-9.e-]+ s: saving is [0-9.]+ % of the time"
check env FAULTY_IO=0:write:1:slow LD_PRELOAD="$faulty_io" mpirun -n 2 "$llampi" check "${keys[@]}" --checkpoint.every=2 --skip-arithmetic
((status == 1)) || complain "a slow disk"
expect PASS checkpoint ''
expect FAIL saving "a checkpoint takes [2-9][0-9.]* s, and the 2 steps between two checkpoints take .* s: saving is (9[0-9.]+|100.0) % of the time, more than 10 %; set checkpoint.every to [0-9,]+ or more, set checkpoint.async = true, or use a faster file system than that of run"
check on_two
expect SKIP saving "checkpoint.every = 0: the only checkpoint is that of the last step"

# A disk that fails, and one that stores another bit than was written.
check env FAULTY_IO=0:write:2:EIO LD_PRELOAD="$faulty_io" mpirun -n 2 "$llampi" check "${keys[@]}" --skip-arithmetic
((status == 1)) || complain "a disk that fails"
expect FAIL checkpoint "rank 0 on .*: pwrite failed: .*Input/output error.*; look at the file system of run"
check env FAULTY_IO=0:write:1:flip LD_PRELOAD="$faulty_io" mpirun -n 2 "$llampi" check "${keys[@]}" --skip-arithmetic
((status == 1)) || complain "a flipped bit"
expect FAIL checkpoint "checkpoints/step-00000004.h5.*; look at the file system of run"
rm -r other other.txt free
expect_nothing_left

# A machine whose figures are all as given: that is far slower than any, or far faster.
machine() { # TFLOP/s and GB/s, microseconds
    sed -E "s/(\"[a-z0-9_]*(tflops|gb_s)[a-z0-9_]*\": \{\"value\": )[0-9.]+/\1$1/; s/(_us\": \{\"value\": )[0-9.]+/\1$2/" \
        "$source_dir/input/machines/workstation-2-cores.json" >other.json
}
machine 1e-5 10
check on_two --machine other.json
expect_nothing_but_slow_ranks "a slower machine"
expect PASS bandwidth "bus bandwidth, machine workstation-2-cores: all_gather [0-9.]+ GB/s \([0-9.]+ predicted\), reduce_scatter .*, all_reduce"
expect PASS speed "[0-9,]+ tokens/s in the fastest step, [0-9,]+ predicted with machine workstation-2-cores: [0-9]+ %"
machine 1e5 0
check on_two --machine other.json
((status == 1)) || complain "a faster machine"
expect FAIL bandwidth "less than half of the bus bandwidth that machine workstation-2-cores has: all_gather .*; look for"
expect FAIL speed "[0-9,]+ tokens/s in the fastest step, [0-9,]+ predicted with machine .*; look for slow ranks and links above"
check on_two --machine h100
((status == 1)) || complain "a machine with GPUs"
expect FAIL speed "machine h100 has the figures of GPUs, but these ranks compute on CPUs; give a machine of that kind, or look at run.device"
machine 1e-5 10
sed -i '/"product_tflops_float32"/d' other.json
check on_two --machine other.json
expect_nothing_but_slow_ranks "a machine without a figure"
expect PASS bandwidth "bus bandwidth"
expect SKIP speed "other.json has no figure product_tflops_float32, which this plan needs"
check on_two --machine none.json
((status == 2)) || complain "a machine file that is not there"
[[ $(grep -c '^llampi: ' <<<"$output") == 1 && $output == *none.json* ]] || complain "one sentence"
rm other.json
expect_nothing_left
