#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_gpu_tests_test.sh SOURCE JUDGED: what scripts/run-gpu-tests.sh makes of programs that pass, fail, skip, crash, hang or
# run nothing. The tests are JUDGED (judged.cpp), coloured as on a terminal whatever the script asks for; the other programs are
# scripts that print what llampi, compute-sanitizer and several_ranks.sh print.
# shellcheck disable=SC2016 # scripts that are written to files
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tree=$folder/tree build=$folder/tree/the\ build
mkdir -p "$tree/scripts" "$tree/tests/gpu" "$tree/bench" "$build/tests/gpu" "$folder/bin"
cp "$1"/scripts/{run-gpu-tests,mpi-env}.sh "$tree/scripts/"

program() { # file, script
    printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
    chmod +x "$1"
}
judged=$2
tests() { # those of JUDGED that a filter chooses
    printf 'export GTEST_FILTER=%q; %q "$@" --gtest_color=yes' "$1" "$judged"
}
good_test=$(tests '*.Passes*:*.DISABLED*')
# What it takes to pass everything.
all_good() {
    program "$build/llampi" 'echo "GPU              CUDA 13.0, cuBLASLt 13.1"'
    program "$build/tests/gpu/test_gpu" "$good_test"
    program "$build/tests/gpu/test_ranks" "$good_test"
    program "$build/gpu_bench" ''
    program "$tree/bench/gpu_table.sh" '
        beside=; while (($#)); do case $1 in --folder) folder=$2 ;; --beside) beside+=" and $2" ;; --only) beside+=" of $2" ;; esac; shift; done; mkdir -p "$folder"
        echo "{\"system\":\"llampi\"}" >"$folder/results.jsonl"; echo "| a table$beside |" >"$folder/tables.md"'
    program "$tree/tests/gpu/several_ranks.sh" 'echo "== all agree"'
    program "$folder/bin/compute-sanitizer" '
        tool=$2
        while [[ $1 == --* ]]; do shift 2; done # every option has a value
        program=$1; shift; for a in "$@"; do shift; [[ $a == --gtest_filter=* ]] || set -- "$@" "$a"; done
        "$program" "$@" || exit; if [[ $tool == racecheck ]]; then echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
        else echo "========= ERROR SUMMARY: 0 errors"; fi'
    program "$folder/bin/mpirun" 'if [[ $1 == --version ]]; then exit; fi; shift 2; exec "$@"'
    printf 'test_%s\n' 'gpu tests/gpu/test_gpu * ' 'ranks tests/gpu/test_ranks * 1 2' >"$build/gpu_tests.list"
}
run() { # expected status, arguments...
    local expected=$1 status=0
    shift
    PATH=$folder/bin:$PATH OUT=$folder/out "$tree/scripts/run-gpu-tests.sh" "$build" "$@" \
        >"$folder/output" 2>&1 || status=$?
    if ((status != expected)); then
        cat "$folder/output"
        echo "exit status $status instead of $expected with: $*" >&2
        exit 1
    fi
}
expect() { # a line of the table that must be there
    if ! grep -q -E "^$1" "$folder/output"; then
        cat "$folder/output"
        echo "no line: $1" >&2
        exit 1
    fi
}

all_good
run 0
for name in program test_gpu test_ranks_1 test_ranks_2 runs_{losses,tree,families,adapters} memcheck racecheck gpu_bench; do expect "$name +pass"; done
expect "test_gpu +pass .* 2 tests passed$"
expect "memcheck +pass .* 2 tests passed ERROR SUMMARY: 0 errors$"
grep -q "a table" "$folder/output"
[[ $(tail -n 1 "$folder/output") == "none of 11 failed; "* ]] # the table is last
grep -q '^\[  PASSED  \] 2 tests' "$folder/out/test_gpu.log" # without colours

program "$build/tests/gpu/test_gpu" "$(tests '*.Passes:*.Fails')"
run 1
expect "test_gpu +FAIL .*exit status 1; failed: Judged.Fails"
expect "memcheck +FAIL"
expect "gpu_bench +pass" # and it went on
[[ $(tail -n 1 "$folder/output") == "3 of 11 FAILED"* ]]

# What fails is not passed because of its exit status, nor because of what it prints, nor because of an earlier run's results.
all_good
program "$build/tests/gpu/test_gpu" "GTEST_FILTER='*.Fails' $judged \"\$@\"; echo '[  PASSED  ] 3 tests.'; exit 0"
run 1 tests
expect "test_gpu +FAIL .*failed: Judged.Fails"
program "$build/tests/gpu/test_gpu" "echo '[  PASSED  ] 3 tests.'"
run 1 tests
expect "test_gpu +FAIL .*ended without results"
program "$build/tests/gpu/test_gpu" "GTEST_FILTER='*.Passes' $judged \"\$@\"; exit 3"
program "$build/tests/gpu/test_ranks" "$(tests '*.Passes:*.Crashes')"
run 1 tests
expect "test_gpu +FAIL .*exit status 3; 1 test passed"
expect "test_ranks_1 +FAIL .*exit status 134; it ended without results, in Judged.Crashes, after 1 that passed"

all_good
program "$build/tests/gpu/test_gpu" "$(tests '*.Passes:*.IsSkipped')"
run 1 tests
expect "test_gpu +FAIL .*skipped: Judged.IsSkipped: no GPU to test: there is no driver$"
expect "test_ranks_1 +pass"

# Tests that are for another number of ranks are named and have not failed, unless nothing else ran or there was no GPU either.
all_good
program "$build/tests/gpu/test_ranks" "$(tests '*.Passes:*Ranks*')"
run 0 tests
expect "test_ranks_1 +pass .* 1 test passed, 3 skipped \\(for four ranks; needs ranks\\)$"
program "$build/tests/gpu/test_ranks" "$(tests '*.NeedsRanks')"
run 1 tests
expect "test_ranks_1 +FAIL .*no test ran, 1 skipped \\(needs ranks\\)$"
program "$build/tests/gpu/test_ranks" "$(tests '*.Passes:*.NeedsRanks:*.IsSkipped')"
run 1 tests
expect "test_ranks_1 +FAIL .*skipped: Judged.IsSkipped: no GPU to test"
program "$build/tests/gpu/test_ranks" "$(tests '*.NeedsRanks:*.Fails')"
run 1 tests
expect "test_ranks_1 +FAIL .*failed: Judged.Fails"

all_good
program "$build/tests/gpu/test_gpu" "$(tests 'Nothing.*')"
run 1 tests
expect "test_gpu +FAIL .*no test ran"
program "$build/tests/gpu/test_gpu" "$(tests '*.DISABLED*')"
run 1 tests
expect "test_gpu +FAIL .*no test ran"

all_good
program "$build/tests/gpu/test_gpu" "$(tests '*.Passes:*.Hangs')"
run 1 tests=3 # a busy machine may need a second of it before the first program starts
expect "test_gpu +FAIL .*not done after [123] s; it ended without results, in Judged.Hangs, after 1 that passed"
expect "test_ranks_1 +FAIL .*no time"

# A program in parts: what one of them does takes no results of the other with it.
all_good
program "$build/tests/gpu/test_ranks" "$judged \"\$@\""
printf 'test_ranks_%s\n' 'crash tests/gpu/test_ranks *.Crashes 1 2' 'rest tests/gpu/test_ranks *.Passes*:*Ranks*-*.PassesToo 2' >"$build/gpu_tests.list"
run 1 ranks
expect "test_ranks_crash_2 +FAIL .*in Judged.Crashes, after 0 that passed"
expect "test_ranks_rest_2 +pass .* 1 test passed, 3 skipped"
[[ $(tail -n 1 "$folder/output") == "1 of 2 FAILED"* ]]

# mpirun may give its programs a terminal, where lines end with a carriage return.
all_good
program "$build/tests/gpu/test_ranks" "$(tests '*.Passes') | sed 's/\$/\\r/'; exit \${PIPESTATUS[0]}"
program "$tree/tests/gpu/several_ranks.sh" 'printf "\033[0;32m== all agree\033[m\r\n"'
run 0 ranks runs
expect "test_ranks_2 +pass .* 1 test passed$"
expect "runs_tree +pass .* == all agree$"

# Parts; each fits into ten minutes, all without a limit of their own.
run 0 program tests
[[ $(tail -n 1 "$folder/output") == "none of 3 failed"* ]]
program "$build/tests/gpu/test_gpu" "$(tests '*.Hangs')"
TOTAL=3 run 1 tests program
expect "test_gpu +FAIL .*not done after [123] s"
expect "program +FAIL .*no time"
all_good
program "$build/llampi" 'echo "GPU              none: libcublasLt.so.13 cannot be loaded"'
run 1 program
expect "program +FAIL .*libcublasLt.so.13 cannot be loaded"

all_good
sanitized='for a in "$@"; do [[ $a != --gtest_output=* ]] || '"GTEST_FILTER='*.Passes' $judged"' "$a"; done'
program "$folder/bin/compute-sanitizer" "$sanitized; echo '========= ERROR SUMMARY: 2 errors'; exit 9"
run 1 memcheck
expect "memcheck +FAIL .*2 errors"
program "$folder/bin/compute-sanitizer" "$sanitized; echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error)'"
run 1 racecheck
expect "racecheck +FAIL .*1 hazard"

all_good
(cd "$folder" && LLMQ_LOG="one.json two.json" run 0 bench)
expect "\\| a table and $(realpath "$folder")/one.json and $(realpath "$folder")/two.json \\|"
run 0 bench choices
expect "\\| a table of choices \\|"
expect "gpu_bench +pass"
expect "gpu_bench_choices +pass"
[[ -e $folder/out/gpu_table/tables.md && -e $folder/out/gpu_table_choices/tables.md ]]

program "$tree/bench/gpu_table.sh" 'mkdir -p "$OUT/gpu_table"
    printf "%s\n" "{\"system\":\"llampi\"}" "{\"system\":\"llampi long\",\"not_measured\":\"exit status 1, out of memory\"}" >"$OUT/gpu_table/results.jsonl"'
program "$tree/tests/gpu/several_ranks.sh" '[[ $PARTS != families ]] || { echo "several_ranks: the losses do not agree"; exit 1; }
    mkdir -p "$KEEP"; touch "$KEEP/weights.h5"; echo "== all agree"'
ARCHIVE=$folder/results.tar.gz run 1 runs bench
expect "runs_families +FAIL .*do not agree"
expect "runs_adapters +pass"
expect "gpu_bench +FAIL .*1 of 2 configurations measured, 1 failed, 0 that verdicts need and 0 others without time"
tar -tzf "$folder/results.tar.gz" >"$folder/names"
grep -q '^out/runs_tree.log$' "$folder/names"
[[ $(grep -c '\.h5$' "$folder/names") == 0 ]]

# The note of a part is the reason of several_ranks.sh.
cp "$1/tests/gpu/several_ranks.sh" "$tree/tests/gpu"
mkdir "$tree/docs"
touch "$tree"/README.md "$tree"/docs/page.md
program "$build/llampi" '[[ $1 == tokenize ]]'
run 1 runs
expect "runs_losses +FAIL .*exit status 1; several_ranks: one failed$"

# What lacked time has failed if a verdict needs it.
for needed in false true; do
    program "$tree/bench/gpu_table.sh" 'mkdir -p "$OUT/gpu_table"
        printf "%s\n" "{\"system\":\"llampi\"}" "{\"system\":\"llampi long\",\"not_measured\":\"no time left\",\"verdict\":'$needed'}" \
            "{\"system\":\"llampi longer\",\"not_measured\":\"no time left\",\"verdict\":false}" >"$OUT/gpu_table/results.jsonl"'
    if $needed; then
        run 1 bench
        expect "gpu_bench +FAIL .*1 of 3 configurations measured, 0 failed, 1 that verdicts need and 1 others without time"
    else
        run 0 bench
        expect "gpu_bench +pass .*1 of 3 configurations measured, 0 failed, 0 that verdicts need and 2 others without time"
    fi
done
rm "$build/gpu_bench"
run 1 bench
expect "gpu_bench +FAIL .*there is no"

run 2 tests memchek
run 2 tests=

# A build without tests, and a folder that is no build; help starts nothing.
all_good
rm "$build/gpu_tests.list"
run 1 tests ranks
expect "gpu_tests.list +FAIL .*there are no tests in .*the build: build them"
echo 'test_ranks tests/gpu/test_ranks * 2' >"$build/gpu_tests.list"
run 1 tests
[[ $(tail -n 1 "$folder/output") == "FAILED: nothing ran"* ]]
rm "$build/llampi"
run 2
grep -q "there is no llampi in .*the build" "$folder/output"
"$tree/scripts/run-gpu-tests.sh" --help >"$folder/output"
expect "  scripts/run-gpu-tests.sh BUILD "
