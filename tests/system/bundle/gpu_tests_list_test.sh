#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_tests_list_test.sh BUILD: the lines of gpu_tests.list (cmake/Bundle.cmake) have every test of each program, and each test once.
set -euo pipefail
export LC_ALL=C
build=$1
listed=$(mktemp)
[[ -s $build/gpu_tests.list ]]
trap 'rm -f "$listed"' EXIT

tests() { # program, filter: SUITE.TEST each
    "$build/$1" --gtest_list_tests --gtest_filter="$2" | sed 's/ *#.*//' | awk '/^[^ ]+\.$/ { suite = $1 } /^  / { print suite $1 }'
}
while read -r program; do
    while read -r name file filter _; do
        if [[ $file != "$program" ]]; then continue; fi
        part=$(tests "$program" "$filter")
        if [[ -z $part ]]; then
            echo "$name has no test: $filter" >&2
            exit 1
        fi
        printf '%s\n' "$part"
    done <"$build/gpu_tests.list" | sort >"$listed"
    if ! diff <(tests "$program" '*' | sort) "$listed"; then
        echo "lines of $program in gpu_tests.list: a test is missing (<), or there twice (>)" >&2
        exit 1
    fi
    printf '%s: %d tests, each in one line\n' "$program" "$(wc -l <"$listed")"
done < <(cut -d ' ' -f 2 "$build/gpu_tests.list" | sort -u)
