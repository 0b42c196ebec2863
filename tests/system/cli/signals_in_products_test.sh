#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# signals_in_products_test.sh SOURCE LLAMPI: a signal that arrives while matrix products run must stop the run cleanly. With handlers on the
# computing thread's stack nine of ten of these ended in a corrupted heap, so three are enough to notice.
set -euo pipefail
source_dir=$1 llampi=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# shellcheck source=scripts/mpi-env.sh
source "$source_dir/scripts/mpi-env.sh"
"$llampi" tokenize --tokenizer bytes --output train.h5 "$source_dir/LICENSE" "$source_dir"/docs/*.md "$source_dir"/README.md
for attempt in 1 2 3; do
    mpirun -n 2 "$llampi" train --config "$source_dir/input/small.ini" --model.config="$source_dir/input/small" --run.dir="run$attempt" \
        --data.train=train.h5 --data.eval= --train.eval_every=0 --data.seq_len=64 --train.steps=100000 >"log$attempt" &
    until grep -q '^step  *2/' "log$attempt" 2>/dev/null; do sleep 0.1; done
    kill -USR1 $!
    status=0
    wait $! || status=$?
    ((status == 75)) || { cat "log$attempt"; echo "attempt $attempt ended with status $status" >&2; exit 1; }
    ls "run$attempt"/checkpoints/step-*.h5
done
