#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# expect_no_include.sh HEADER COMPILER FOLDER...: passes if HEADER cannot be included with these include folders, while
# llampi/core/error.hpp can.
set -euo pipefail
header=$1
compiler=$2
shift 2
includes() { echo "#include \"$1\"" | "$compiler" -std=c++20 -fsyntax-only "${@:2}" -x c++ - 2>&1; }
arguments=()
for folder in "$@"; do arguments+=("-I$folder"); done
if ! includes llampi/core/error.hpp "${arguments[@]}"; then
    echo "the include folders are not those of a part: $*"
    exit 1
fi
if output=$(includes "$header" "${arguments[@]}"); then
    echo "$header can be included"
    exit 1
fi
if ! grep -q "$header: No such file\|'$header' file not found" <<<"$output"; then
    echo "it was refused for another reason: $output"
    exit 1
fi
