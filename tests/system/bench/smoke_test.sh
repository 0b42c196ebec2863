#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# smoke_test.sh SOURCE BUILD NAME: a benchmark of bench/ on CPUs, with its smallest arguments. Its rows and columns, and that all figures are finite
# numbers, not how large they are: tests share the cores. Two are run in full and judged, plan_accuracy and tune_check: they fail where a bound is
# missed, and are skipped where it is missed while other programs use the cores.
set -euo pipefail
source_dir=$1 build=$2 name=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LC_ALL=C

fail() {
    cat "$folder/out"
    echo "$name: $1" >&2
    exit 1
}
# run STATUSES COMMAND...: its output, in $folder/out; it may end with one of these
run() {
    local statuses=$1
    status=0
    shift
    "$@" >"$folder/out" 2>"$folder/err" || status=$?
    [[ " $statuses " == *" $status "* ]] || {
        cat "$folder/err"
        fail "status $status"
    }
}
# expect_rows COUNT PATTERN: so many lines match
expect_rows() {
    local found
    found=$(grep -cE "$2" "$folder/out" || true)
    [[ $found == "$1" ]] || fail "$found lines instead of $1 match $2"
}
# Numbers above 0: no nan, no inf, nothing empty.
expect_positive() {
    local value
    for value in "$@"; do
        if ! [[ $value =~ ^[0-9]+(\.[0-9]+)?$ && $value =~ [1-9] ]]; then fail "\"$value\" is not a number above 0"; fi
    done
}

# expect_table ROWS: in the third and fourth column of the table, which are numbers above 0 but in its two lines of headings
expect_table() {
    local rows=0 measured predicted
    while read -r measured predicted; do
        expect_positive "$measured" "$predicted"
        rows=$((rows + 1))
    done < <(awk -F ' *[|] *' '/^\|/ && ++line > 2 { print $3, $4 }' "$folder/out")
    [[ $rows == "$1" ]] || fail "$rows rows instead of $1"
}

# Percent of all cores that are in use, over three seconds.
percent_in_use() {
    local name user nice system idle rest busy total
    read -r name user nice system idle rest </proc/stat
    busy=$((user + nice + system)) total=$((user + nice + system + idle))
    sleep 3
    read -r name user nice system idle rest </proc/stat
    busy=$((user + nice + system - busy)) total=$((user + nice + system + idle - total))
    echo $((100 * busy / (total > 0 ? total : 1)))
}
# judged COMMAND...: with its default arguments, on cores that it has for itself.
judged() {
    local before after
    before=$(percent_in_use)
    run "0 1" "$@"
    ((status == 1)) || return 0
    grep -q ': BAD$' "$folder/out" || fail "it ended without a verdict: $(tail -n 3 "$folder/err")"
    after=$(percent_in_use)
    cat "$folder/out"
    if ((before > 10 || after > 10)); then
        echo "skipped: a bound was missed, but other programs used $before % of the cores before and $after % after the measurement"
        exit 77
    fi
    fail "a bound was missed"
}

number='[0-9]+\.?[0-9]*'
signed="[+-]$number"
case $name in
    scaling)
        run 0 env STEPS=300 MONITOR=1 bash "$source_dir/bench/scaling.sh" "$build" "$folder/scaling" 1 2
        expect_rows 1 '^ *ranks +whole +start +end +cpu +pss +private +messages +MB +peers$'
        [[ $(wc -l <"$folder/out") == 3 ]] || fail "not a row for each number of ranks"
        for ranks in 1 2; do
            read -r -a row < <(grep -E "^ *$ranks " "$folder/out")
            ((${#row[@]} == 10)) || fail "${#row[@]} columns of $ranks ranks"
            expect_positive "${row[@]:0:3}" "${row[@]:4:3}"
        done
        # Two ranks, the last of these, exchange something; one does not. Memory is looked at while the run lasts, hence the steps.
        expect_positive "${row[@]:7}"
        read -r -a row < <(grep -E '^ *1 ' "$folder/out")
        [[ ${row[*]:7} == "0 0.00 0" ]] || fail "one rank sends something"
        ;;
    waiting_threads)
        run 0 bash "$source_dir/bench/waiting_threads.sh" "$build/bench/step_bench" 1 2
        for beside in alone 'beside a busy program'; do
            expect_rows 1 "^$beside: [1-9][0-9]* tokens/s as the library waits, [1-9][0-9]* as llampi does$"
            expect_rows 1 "^$beside, medians: [1-9][0-9]* and [1-9][0-9]* tokens/s, ratio [0-9]+\.[0-9]{3}$"
        done
        ;;
    checkpoint_bench)
        mkdir "$folder/files"
        run 0 mpirun -n 2 "$build/bench/checkpoint_bench" "$folder/files" 1
        expect_rows 1 '^1\.[0-9]+ GiB on 2 ranks, medians of 1$'
        for row in 'copy of the state \(memcpy\)' 'snapshot: what training waits for' dd 'plain write' 'save_checkpoint, direct' \
            'save_checkpoint, direct, 1 writer' 'plain read' 'load_checkpoint, direct'; do
            expect_rows 1 "^  $row +$number s +$number GB/s$"
        done
        while read -r seconds; do
            expect_positive "$seconds"
        done < <(awk '/ GB\/s$/ { print $(NF - 3) }' "$folder/out")
        [[ -z $(find "$folder/files" -type f) ]] || fail "files are left"
        ;;
    gpu_table)
        run 0 bash "$source_dir/bench/gpu_table.sh" --folder "$folder/tables" --program "$build/gpu_bench" --lengths 64 -- --device cpu --layers 1 \
            --hidden 256 --ffn 512 --heads 4 --kv-heads 2 --vocab 2048 --tokens 256 --square 512
        cmp "$folder/out" "$folder/tables/tables.md"
        # Each configuration is a row with its tokens/s, and is not left out.
        while read -r tokens; do
            expect_positive "$tokens"
        done < <(awk -F ' *[|] *' '/^\| llampi, hidden 256/ { print $6 }' "$folder/out")
        (($(grep -c '^| llampi, hidden 256' "$folder/out") >= 5)) || fail "rows are missing"
        for class in 'matrix products' 'attention forward' 'attention backward' AdamW 'gradient norm'; do
            expect_rows 1 "^\\| $class \\|( $number \\($number %\\) \\|)+$"
        done
        ! grep -E '^\| llampi|^llampi' "$folder/out" | grep 'not measured' || fail "something was not measured"
        ;;
    fp8_convergence)
        # Three steps teach nothing: one wrong answer more or a loss that differs does not matter here.
        cd "$source_dir"
        STEPS=3 run "0 1" bash bench/fp8_convergence.sh "$build/llampi" "$folder/run" 0
        for products in auto fp8; do
            expect_rows 1 "^$products 0 $number $number [0-9]+ $number$"
        done
        for loss in 'loss, sums' 'loss, licences'; do
            expect_rows 1 "^\| $loss \| $number \| $number \| $signed % \|$"
        done
        expect_rows 1 '^losses within 0\.5 %: (yes|no)$'
        expect_rows 1 '^right answers within the spread of bfloat16: (yes|no)$'
        ;;
    plan_accuracy)
        judged bash "$source_dir/bench/plan_accuracy.sh" "$build/llampi" "$folder/run"
        expect_rows 1 '^\| ranks, threads, model, sequences, tokens, global batch \| measured, ms \| predicted, ms \| error \| within 15 % \|$'
        expect_rows 12 "^\| [12] [12] [a-z]+ [0-9 ]+.* \| $number \| $number \| $signed % \| good \|$"
        expect_table 12
        expect_rows 1 '^12 of 12 within 15 %: good$'
        ;;
    tune_check)
        judged bash "$source_dir/bench/tune_check.sh" "$build/llampi" "$folder/run"
        expect_rows 1 '^\| configuration \| measured, ms \| predicted, ms \| tuned against it \| at most 5 % slower \|$'
        expect_rows 25 "^\| (tuned|--train\.micro_batch=[0-9]+ --fsdp\.strategy=.*) \| $number \| $number \| $signed % \| good \|$"
        expect_table 25
        expect_rows 1 "^the step of plan --tune takes $number ms, the fastest of 24 others $number ms \($signed %\): good$"
        ;;
    *) fail "no such benchmark" ;;
esac
cat "$folder/out"
