#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: processors_test.sh TEST_UNIT_DEVICE [whole]; whole: takes a minute more; 77: skipped, without the emulator of processors.
set -uo pipefail
if ! command -v qemu-x86_64 >/dev/null; then
    echo "skipped: there is no qemu-x86_64 (Debian: qemu-user)"
    exit 77
fi

run_on() { # run_on PROCESSOR EXPECTED...: the variants of the kernels that are there, the fastest first, as VectorExp prints them
    local processor=$1 output expected
    shift
    output=$(qemu-x86_64 -cpu "$processor" "$test" --gtest_color=no --gtest_filter="$suites" 2>&1) || {
        printf '%s\nfailed on %s\n' "$output" "$processor"
        exit 1
    }
    printf -v expected '%s\n' "$@"
    if [[ $(sed -n 's/: largest relative error of exp .*//p' <<<"$output")$'\n' != "$expected" ]]; then
        printf '%s\non %s there must be: %s\n' "$output" "$processor" "$expected"
        exit 1
    fi
}

test=$1
# A gradient in bfloat16 is cast by code that is the same on all processors.
suites='CpuKernels.*:VectorExp.*:Kernels.*:CastKernels.*:NarrowAdamW.*:StochasticRounding.*:RandomKernels.*-NarrowAdamW.GradientInBfloat16CountsAsWidened'
run_on Nehalem generic
# Takes most of the time with vectors, which this processor has too: unit_device compares them.
if [[ ${2:-} != whole ]]; then suites+=:CpuKernels.AllVariantsAgree; fi
run_on Haswell 'AVX2 (x86-64-v3)' generic
suites='VectorExp.*' # the generic kernels again: which ones are taken is the question
run_on Haswell,-f16c generic
