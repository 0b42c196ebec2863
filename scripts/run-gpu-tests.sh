#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything that needs a GPU, one thing after another whatever fails, and prints a table last. Fails if anything did; a test
# that is skipped because there is no GPU to test has failed. Only reads the GPU's settings.
#
#   scripts/run-gpu-tests.sh BUILD [STEP[=SECONDS]...]    from a build tree
#   ./run-gpu-tests [STEP[=SECONDS]...]                   from a bundle (docs/bundle.md)
#
# Steps, all unless some are named, each with the seconds it may take. None takes ten minutes; all together may take over half an
# hour, so where a command may run for ten minutes only, name them in several calls.
#   program=20      the program starts, and the plugin with its CUDA libraries
#   tests=300       tests labelled gpu on one rank
#   ranks=570       those on several ranks, which share a GPU where there are too few
#   runs=500        training runs of the program on 1, 2 and 4 ranks, whose losses must agree; of Qwen2, Qwen3, Mistral and LoRA
#                   adapters, with those of CPUs
#   memcheck=120    test_gpu under compute-sanitizer, skipped where that is not found
#   racecheck=90    likewise; shared memory, without the tests of attention
#   bench=480       bench/gpu_table.sh: gpu_bench, and PyTorch beside it where python3 has it
#   choices=280     only if it is named: logits as a run takes them, against chunks of 1 GiB (gpu_table.sh --only choices)
#   keys=580        where several GPUs are visible: bench/several_gpus.sh, with a verdict on each key of communication
#
#   OUT=FOLDER      where the logs go; default: gpu-results
#   ARCHIVE=FILE    a .tar.gz of that folder at the end, without weights and token files
#   TOTAL=SECONDS   for all steps together; default: what they may take. What would begin later fails.
#   PYTHON=PROGRAM  default: python3
#   LLMQ_LOG="FILE ..." logs of runs of llmq on this GPU, one for each shape, for the verdicts of `bench`
set -uo pipefail
export LC_ALL=C

usage() { sed -n '3,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
for argument in "$@"; do
    if [[ $argument == --help || $argument == -h ]]; then usage && exit; fi
done
if (($# == 0)); then usage >&2 && exit 2; fi
build=$(realpath -- "$1") || exit 2
shift
if [[ ! -x $build/llampi ]]; then
    echo "run-gpu-tests: there is no llampi in $build: build it first, or give the build folder" >&2
    exit 2
fi
out=$(realpath -m -- "${OUT:-gpu-results}")
archive=$(realpath -m -- "${ARCHIVE:-.}")
beside=()
for log in ${LLMQ_LOG:-}; do beside+=(--beside "$(realpath -- "$log")"); done
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
mkdir -p "$out" || exit 2

steps=(program tests ranks runs memcheck racecheck bench)
if (($(nvidia-smi -L 2>/dev/null | grep -c "^GPU") > 1)); then steps+=(keys); fi
declare -A budget=([program]=20 [tests]=300 [ranks]=570 [runs]=500 [memcheck]=120 [racecheck]=90 [bench]=480 [choices]=280 [keys]=580)
chosen=()
for argument in "$@"; do
    step=${argument%%=*}
    if [[ -z ${budget[$step]:-} || ! ${argument#"$step"} =~ ^(=[1-9][0-9]*)?$ ]]; then
        echo "run-gpu-tests: $argument is no STEP[=SECONDS]; steps: ${steps[*]} choices" >&2
        exit 2
    fi
    if [[ $argument == *=* ]]; then budget[$step]=${argument#*=}; fi
    chosen+=("$step")
done
if ((${#chosen[@]} == 0)); then chosen=("${steps[@]}"); fi
total=0
for step in "${chosen[@]}"; do ((total += budget[$step])); done
deadline=$((SECONDS + ${TOTAL:-$total}))

# shellcheck source=scripts/mpi-env.sh
source scripts/mpi-env.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} NCCL_DEBUG=${NCCL_DEBUG:-WARN}
plugin=$build/libllampi_cuda.so
if [[ ! -e $plugin ]]; then plugin=$(dirname -- "$build")/lib/libllampi_cuda.so; fi
LLAMPI_PLUGIN_DIR=$(dirname -- "$plugin")
export LLAMPI_PLUGIN_DIR

# ---- running and judging -------------------------------------------------------------------------------------------

table=()
failed=0 skipped=0
record() { # name, result, seconds, note
    table+=("$(printf '%-28s %-5s %5s  %s' "$1" "$2" "$3" "${4:0:160}")")
    if [[ $2 == FAIL ]]; then ((failed++)); fi
    if [[ $2 == skip ]]; then ((skipped++)); fi
    printf '   %s %s %s\n' "$2" "$1" "$4"
}

seconds_left() { echo $(((step_deadline < deadline ? step_deadline : deadline) - SECONDS)); }

# Runs a command within what is left of its step's time, its output into $out/NAME.log, and records what came of it.
run() { # name, judge of the output, command...
    local name=$1 judge=$2 log=$out/$1.log start=$SECONDS limit status=0 result=pass note
    shift 2
    limit=$(seconds_left)
    if ((limit <= 0)); then
        record "$name" FAIL 0 "no time was left for it"
        return
    fi
    printf '\n== %s: %s\n' "$name" "$*"
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?
    # mpirun may give its programs a terminal: colours, and line ends with a carriage return.
    sed -i -e 's/\x1b\[[0-9;]*[A-Za-z]//g' -e 's/\r$//' "$log"
    note=$("$judge" "$log") || result=FAIL
    note=${note//$'\n'/ }
    if ((status == 124 || status == 137)); then
        result=FAIL note="not done after $limit s${note:+; $note}"
    elif ((status != 0)); then
        result=FAIL note="exit status $status${note:+; $note}"
    fi
    if [[ $result == FAIL ]]; then tail -n 25 "$log"; fi
    record "$name" "$result" $((SECONDS - start)) "$note"
}

# Likewise a program of GoogleTest, with options that are put behind the command. It is judged by its exit status and by the
# results that it writes to $out/NAME.xml, not by what it prints.
run_tests() { # name, judge, command...
    local name=$1 judge=$2
    shift 2
    rm -f "$out/$name.xml"
    run "$name" "$judge" "$@" --gtest_color=no "--gtest_output=xml:$out/$name.xml"
}

# Judges print a note and fail if the output is not that of a success, whatever the exit status said.
any_output() { tail -n 1 "$1"; }
readonly no_gpu="no GPU to test" # what tests in tests/gpu say that are skipped because of it; others are for another number of ranks or GPU
all_tests() { # GoogleTest's: some ran, none failed, none lacked a GPU
    local results=${1%.log}.xml passed test reasons skipped=''
    if [[ ! -s $results ]]; then # it writes them last
        test=$(sed -n 's/^\[ RUN      \] //p' "$1" | tail -n 1)
        echo "it ended without results${test:+, in $test, after $(grep -c '^\[       OK \]' "$1") that passed}"
        return 1
    fi
    named() { # of a test case
        sed -n "s/.* name=\"\([^\"]*\)\".* classname=\"\([^\"]*\)\".*/\2.\1/p" | head -n 1
    }
    test=$(grep -B 1 -m 1 '<failure ' "$results" | named)
    if [[ -n $test ]] || ! grep -q '^<testsuites [^>]*failures="0"[^>]*errors="0"' "$results"; then
        echo "failed: ${test:-unknown}"
        return 1
    fi
    test=$(grep -B 1 -m 1 "<skipped .*$no_gpu" "$results")
    if [[ -n $test ]]; then
        echo "skipped: $(named <<<"$test"): $no_gpu$(sed -n "s/.*<skipped .*$no_gpu\([^\"]*\)\".*/\1/p" <<<"$test")"
        return 1
    fi
    reasons=$(sed -n 's/.*<skipped message="\([^"]*\)".*/\1/p' "$results" | sed 's/.*&#x0A;//' | sort -u | paste -sd ';' | sed 's/;/; /g')
    if [[ -n $reasons ]]; then skipped="$(grep -c '<testcase .* result="skipped"' "$results") skipped ($reasons)"; fi
    passed=$(grep -c '<testcase .* result="completed"' "$results")
    if ((passed == 0)); then
        echo "no test ran${skipped:+, $skipped}"
        return 1
    fi
    echo "$passed $( ((passed == 1)) && echo test || echo tests) passed${skipped:+, $skipped}"
}
has_gpu() { # of `llampi --version`
    grep '^GPU  *' "$1" | sed 's/^GPU *//'
    grep -q '^GPU  *CUDA ' "$1"
}
clean() { # compute-sanitizer found nothing, and the tests that it watched passed
    local tests summary
    tests=$(all_tests "$1") || { echo "$tests"; return 1; }
    summary=$(grep -o -E '(ERROR|RACECHECK) SUMMARY: .*' "$1" | tail -n 1)
    echo "$tests ${summary:-no summary}"
    [[ $summary == *" SUMMARY: 0 "* ]]
}

# ---- what the machine has ------------------------------------------------------------------------------------------

machine() {
    sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release
    echo "$(env -u OMP_NUM_THREADS nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(ldd --version | head -n 1)"
    if command -v nvidia-smi >/dev/null; then
        timeout 20 nvidia-smi --format=csv \
            --query-gpu=index,name,driver_version,compute_cap,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit
        echo "programs on the GPUs:"
        timeout 20 nvidia-smi --format=csv --query-compute-apps=pid,used_memory
    elif [[ -e /proc/driver/nvidia/version ]]; then
        head -n 1 /proc/driver/nvidia/version
    else
        echo "no NVIDIA driver is seen: neither nvidia-smi nor /proc/driver/nvidia"
    fi
    if [[ -e $plugin ]]; then
        echo "libraries of $plugin:"
        ldd "$plugin" 2>/dev/null | grep -E 'lib(cu|nccl|stdc)' | sed 's/ (0x.*//'
    else
        echo "there is no libllampi_cuda.so in $build: it was built without GPU support"
    fi
}

find_sanitizer() {
    local place
    for place in "$(command -v compute-sanitizer)" ${CUDA_HOME:+"$CUDA_HOME"/bin/compute-sanitizer} \
        /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
        if [[ -x $place ]]; then
            echo "$place"
            return
        fi
    done
    # In NVIDIA's Python packages, where the CUDA libraries came from.
    ldd "$plugin" 2>/dev/null | sed -n 's/.*=> \(.*\/nvidia\)\/.*/\1/p' | sort -u | while IFS= read -r place; do
        find -L "$place" -name compute-sanitizer -type f -perm -u+x
    done | head -n 1
}

# ---- the steps -----------------------------------------------------------------------------------------------------

step_program() {
    run program has_gpu "$build/llampi" --version
    cat "$out/program.log"
}

# Lines of gpu_tests.list: a name, a program, a filter for its tests, and the numbers of ranks that it runs on; none: without mpirun.
run_listed() { # which numbers of ranks: a pattern
    local name file filter ranks n options
    if [[ ! -s $build/gpu_tests.list ]]; then
        record gpu_tests.list FAIL 0 "there are no tests in $build: build them"
        return
    fi
    while read -r name file filter ranks; do
        options=()
        if [[ $filter != '*' ]]; then options=("--gtest_filter=$filter"); fi
        for n in ${ranks:-0}; do
            if [[ ! $n =~ $1 ]]; then continue; fi
            if ((n == 0)); then
                run_tests "$name" all_tests "$build/$file" "${options[@]}"
            else
                run_tests "${name}_$n" all_tests mpirun -n "$n" "$build/$file" "${options[@]}"
            fi
        done
    done <"$build/gpu_tests.list"
}
step_tests() { run_listed '^[01]$'; }
step_ranks() { run_listed '^([2-9]|[1-9][0-9]+)$'; }
step_runs() {
    local part
    for part in losses tree families adapters; do
        run "runs_$part" any_output env PARTS="$part" KEEP="$out/several_ranks" tests/gpu/several_ranks.sh "$build"
    done
}

sanitize() { # tool, tests, options...
    local tool=$1 filter=$2 sanitizer
    shift 2
    sanitizer=$(find_sanitizer)
    if [[ -z $sanitizer ]]; then
        record "$tool" skip 0 "there is no compute-sanitizer"
        return
    fi
    # Native kernels only: those of the libraries take minutes and are NVIDIA's to check.
    run_tests "$tool" clean "$sanitizer" --tool "$tool" --kernel-name kns=llampi --error-exitcode 9 --print-limit 20 "$@" \
        "$build/tests/gpu/test_gpu" --gtest_filter="$filter"
}
# AllLogitsAtOnce has 16,384 rows of 128,256 logits, for the indices of cuBLASLt: too many for a sanitizer.
# Calls that fail on purpose, such as asking for too much memory, are no errors.
step_memcheck() { sanitize memcheck '-*AllLogitsAtOnce*' --report-api-errors no; }
# Attention, whose tiles lie in dynamic shared memory, is left out: with it racecheck ended on an H100 with an illegal address
# inside the sanitizer, where memcheck found none.
step_racecheck() { sanitize racecheck 'GpuOperations.*:GpuUpdate.Norm*-*Attention*:*DocumentsDoNot*:*LargeScores*:*AllLogitsAtOnce*'; }

measured() { # of llampi's configurations; gpu_table.sh notes those that fail and goes on. Not all must have had time
    local rows good failed late missing
    rows=$(grep '"system":"llampi' "$out/$table_folder/results.jsonl")
    good=$(grep -v -c '"not_measured"' <<<"$rows")
    failed=$(grep '"not_measured"' <<<"$rows" | grep -v -c '"not_measured":"no time left')
    late=$(grep '"not_measured":"no time left' <<<"$rows" | grep -v -c '"verdict":true')
    missing=$(grep '"not_measured":"no time left' <<<"$rows" | grep -c '"verdict":true')
    echo "$good of $(wc -l <<<"$rows") configurations measured, $failed failed, $missing that verdicts need and $late others without time"
    [[ -n $rows ]] && ((failed + missing == 0))
}
tables() { # name of the result, folder, OPTION...: of gpu_table.sh
    local name=$1 table_folder=$2
    shift 2
    if [[ ! -x $build/gpu_bench ]]; then
        record "$name" FAIL 0 "there is no $build/gpu_bench"
        return
    fi
    # PyTorch with the libraries that it brings, not with those that were found for llampi.
    printf '#!/usr/bin/env bash\nexport LD_LIBRARY_PATH=%q\nexec %q "$@"\n' "${TORCH_LIBRARY_PATH-${LD_LIBRARY_PATH:-}}" \
        "${PYTHON:-python3}" >"$out/python"
    chmod +x "$out/python"
    run "$name" measured env PYTHON="$out/python" bench/gpu_table.sh --program "$build/gpu_bench" \
        "${beside[@]}" --folder "$out/$table_folder" --budget $(($(seconds_left) - 10)) "$@"
    if [[ -e $out/$table_folder/tables.md ]]; then cat "$out/$table_folder/tables.md"; fi
}
step_bench() { tables gpu_bench gpu_table; }
step_choices() { tables gpu_bench_choices gpu_table_choices --only choices; }

verdicts() { # of the keys; a run without any of them must have worked, or the script had failed
    echo "$(grep -c ': GAINS, ' "$1") keys gain, $(grep -c ': loses, ' "$1") lose, $(grep -c ' FAILED ' "$1") failed"
    grep -q -E ': (GAINS|loses), |: no difference' "$1" || ! grep -q ' FAILED ' "$1"
}
step_keys() {
    run several_gpus verdicts bench/several_gpus.sh --program "$build/llampi" --folder "$out/several_gpus"
    cat "$out/several_gpus.log"
}

machine 2>&1 | tee "$out/machine.log"
for step in "${chosen[@]}"; do
    step_deadline=$((SECONDS + budget[$step]))
    "step_$step"
done

{
    printf '\n%-28s %-5s %5s\n' what result seconds
    printf '%s\n' "${table[@]}"
    if ((${#table[@]} == 0)); then
        echo "FAILED: nothing ran; logs: $out"
    elif ((failed > 0)); then
        echo "$failed of ${#table[@]} FAILED; logs: $out"
    else
        echo "none of ${#table[@]} failed$( ((skipped == 0)) || echo ", $skipped skipped"); logs: $out"
    fi
} | tee "$out/summary-${chosen[0]}.txt"
if [[ -n ${ARCHIVE:-} ]]; then
    tar -czf "$archive" --exclude='*.h5' --exclude='*.safetensors' -C "$(dirname -- "$out")" "$(basename -- "$out")" || ((failed++))
fi
((failed == 0 && ${#table[@]} > 0))
