#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# in_shards.sh N PROGRAM: the tests of a program in N processes at a time, each with a part of them: for tests that mostly wait.
set -uo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
parts=()
for ((i = 0; i < $1; ++i)); do
    GTEST_TOTAL_SHARDS=$1 GTEST_SHARD_INDEX=$i "$2" >"$folder/$i" 2>&1 &
    parts+=($!)
done
status=0
for ((i = 0; i < $1; ++i)); do
    wait "${parts[i]}" || status=1
    cat "$folder/$i"
done
exit $status
