#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# instructions_test.sh SOURCE LLAMPI: `llampi check` names the rank whose matrix products use fewer instructions, as on an older processor. oneDNN can be
# told to (DNNL_MAX_CPU_ISA); without it, or on a processor that has nothing to leave out, this is skipped.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
version=$("$2" --version)
case $version in
    *oneDNN*AVX-512*) fewer=AVX2 name=AVX2 expected=1 ;;
    *oneDNN*AVX2*) fewer=SSE41 name=generic expected=2 ;; # which llampi refuses, after the line of this check
    *)
        echo "skipped: matrix products are not oneDNN's with AVX2 or AVX-512, so no rank can use fewer instructions:" "$(grep -i "products\|BLAS\|oneDNN" <<<"$version" || true)"
        exit 77
        ;;
esac
prepare "$1" "$2"
keys=(--model.config=config.json --data.train=train.h5 --data.seq_len=16 --train.steps=12 --train.global_batch=12 --run.dir=run)
status=0
output=$(mpirun -n 1 "$llampi" check "${keys[@]}" --skip-arithmetic : \
    -n 1 -x DNNL_MAX_CPU_ISA=$fewer "$llampi" check "${keys[@]}" --skip-arithmetic 2>&1) || status=$?
if ((status != expected)) || ! grep -qE "^FAIL  program +rank 1 on .* runs another program or other libraries .*: \"matrix products .*$name.*\" instead of \"" <<<"$output"; then
    printf '%s\nstatus %d: rank 1 has fewer instructions and is not named\n' "$output" "$status" >&2
    exit 1
fi
echo "instructions: rank 1 is named"
