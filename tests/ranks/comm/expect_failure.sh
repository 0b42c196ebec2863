#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# expect_failure.sh PATTERN COMMAND...: succeeds if the command fails and one line of its output matches.
pattern=$1
shift
output=$("$@" 2>&1)
status=$?
printf '%s\nexit status %s\n' "$output" "$status"
[ "$status" -ne 0 ] && printf '%s\n' "$output" | grep -q -- "$pattern"
