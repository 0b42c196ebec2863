#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# growth_test.sh SOURCE BUILD RANKS: what a rank sends and holds in a run of RANKS ranks, beside one of 8, with bench/scaling.sh and one unit of
# parameters. The collectives of the step send to every rank; all else goes to a few ranks, whose number is a logarithm.
set -euo pipefail
source_dir=$1 build=$2 ranks=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LC_ALL=C MONITOR=1 STEPS=100 FLAGS=--fsdp.wrap=none

# measure RANKS: "messages to an ordinary peer, to the one with the most, peers with more than ordinary, bytes beyond the ordinary ones, MiB", each
# the most of any rank
measure() {
    "$source_dir/bench/scaling.sh" "$build" "$folder" "$1" >"$folder/out"
    awk -v pss="$(awk 'END { print $6 }' "$folder/out")" '
        $1 == "E" || $1 == "I" { messages[$2, $3] += $6; bytes[$2, $3] += $4; if ($2 >= n) n = $2 + 1 }
        END {
            for (r = 0; r < n; ++r) {
                ordinary = ordinary_bytes = 1e18; more = beyond = 0
                for (p = 0; p < n; ++p) if (p != r) {
                    if (messages[r, p] < ordinary) ordinary = messages[r, p]
                    if (bytes[r, p] < ordinary_bytes) ordinary_bytes = bytes[r, p]
                }
                for (p = 0; p < n; ++p) if (p != r) {
                    beyond += bytes[r, p] - ordinary_bytes
                    if (messages[r, p] > ordinary + 30) ++more
                    if (messages[r, p] > most) most = messages[r, p]
                }
                if (ordinary > most_ordinary) most_ordinary = ordinary
                if (more > most_more) most_more = more
                if (beyond > most_beyond) most_beyond = beyond
            }
            printf "%d %d %d %d %d %s\n", n, most_ordinary, most, most_more, most_beyond, pss
        }' "$folder"/monitor/*
}

read -r few few_ordinary few_most _ few_beyond few_pss < <(measure 8)
read -r many ordinary most more beyond pss < <(measure "$ranks")
echo "ranks $few: $few_ordinary messages to an ordinary peer, $few_most at most, $few_beyond bytes more, $few_pss MiB"
echo "ranks $many: $ordinary messages to an ordinary peer, $most at most, to $more peers, $beyond bytes more, $pss MiB"
((few == 8 && many == ranks && few_ordinary > 0))
[[ $few_pss != - && $pss != - ]] || { echo "memory was not measured" >&2; exit 1; }
awk -v few_ordinary="$few_ordinary" -v few_most="$few_most" -v few_beyond="$few_beyond" -v few_pss="$few_pss" -v n="$many" -v ordinary="$ordinary" \
    -v most="$most" -v more="$more" -v beyond="$beyond" -v pss="$pss" '
    function bound(what, value, limit) {
        if (value + 0 > 0 && value <= limit) return
        printf "%s: %s, and at most %s was expected\n", what, value, limit
        failed = 1
    }
    BEGIN {
        doublings = log(n) / log(2)
        # Some at the start, and two in a step that a busy machine makes half a second long; one in each step would be 100.
        bound("messages to an ordinary peer", ordinary, few_ordinary + 30)
        bound("messages of 8 ranks beyond the ordinary ones", few_most - few_ordinary, 210) # 188: one more exchange in each step would add 100
        bound("messages to any peer", most, few_most + 30)
        bound("peers that get more", more, doublings)
        bound("bytes beyond those of the collectives", beyond, 1.05 * few_beyond * doublings / 3 + 100 * n)
        bound("MiB of a rank", pss, few_pss + 4)
        exit failed
    }'
