#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank among 64 is killed: it is named, in one report, before mpirun has ended the others, which left their records. On one
# node, and each on its own, where others tell of themselves through the one that is killed.
#   many_ranks_test.sh MPIRUN WATCHED_JOB
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() {
    echo "$placement: $1" >&2
    cat err >&2
    exit 1
}
for placement in "" apart; do
    rm -rf flight
    status=0
    # shellcheck disable=SC2086
    "$1" -n 64 "$2" . 600 kill 41 100 $placement >out 2>err || status=$?
    ((status == 137)) || fail "status $status instead of 137"
    (($(grep -c '^llampi: ' err) == 1)) || fail "not one complaint"
    grep -q '^llampi: watchdog: rank 41 on .* exited without reporting an error (killed' err || fail "rank 41 is not named"
    grep -q 'the record of ranks 0-40, 42-63 is in ' err || fail "not all others reported"
    (($(find flight -name 'rank-*.json' | wc -l) == 63)) || fail "not 63 records"
done
