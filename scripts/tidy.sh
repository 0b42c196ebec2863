#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy (.clang-tidy) over the parts: scripts/tidy.sh [BUILD [JOBS]]. BUILD is configured, with LLAMPI_UNITY, which is the
# default: files are read a dozen at once, as they are compiled, which takes a tenth of the time. Left out are the kernels
# (src/device, one file after another) and what is compiled for GPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build} jobs=${2:-$(nproc)}
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || { echo "tidy: there is no clang-tidy (Debian: apt-get install clang-tidy)" >&2; exit 2; }
mapfile -t files < <(find "$build"/src/CMakeFiles -path '*/Unity/unity_*.cxx' ! -path '*/llampi_device.dir/*' | sort)
if ((${#files[@]} == 0)); then
    echo "tidy: $build is not configured with LLAMPI_UNITY=ON; run cmake -B $build" >&2
    exit 2
fi
# GCC's warning options are not clang's, and what clang warns of is not asked here.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" "$tidy" --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-error 2>&1 |
    { grep -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header' || true; }
