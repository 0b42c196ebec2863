#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# man_test.sh LLAMPI: the manual page without a warning of groff's or mandoc's, and as a reader sees it; 77 without either.
set -euo pipefail
page=$(mktemp)
trap 'rm -f "$page" "$page".*' EXIT
"$1" man >"$page"
checked=0
if command -v groff >/dev/null; then
    groff -ww -man -Tascii "$page" 2>"$page.said" >"$page.text"
    if [[ -s $page.said ]]; then cat "$page.said" && exit 1; fi
    sed 's/.\x08//g; s/\x1b\[[0-9;]*m//g' "$page.text" >"$page.plain"
    for part in '--run.device=auto|cpu|cuda' 'llampi tokenize' 'EXIT STATUS' '--tokenizer=bytes|FILE|FOLDER'; do
        grep -qF -e "$part" "$page.plain" || { echo "a reader does not see $part" && exit 1; }
    done
    checked=1
fi
if command -v mandoc >/dev/null; then # the page has no date, so that it is the same whenever it is built
    mandoc -T lint "$page" | grep -E 'ERROR|WARNING|UNSUPP' | grep -v 'missing date' && exit 1
    checked=1
fi
((checked)) || { echo "there is neither groff nor mandoc"; exit 77; }
