#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# older_files_test.sh SOURCE LLAMPI: files that an older version wrote (tests/fixtures/version_...) are read as they were meant. A run that it
# began continues, on two ranks and on one, with the numbers that the older program itself went on to.
set -euo pipefail
source_dir=$1 llampi=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
    echo "FAILED: $1" >&2
    exit 1
}
# shellcheck source=scripts/mpi-env.sh
source "$source_dir/scripts/mpi-env.sh"
export OMP_NUM_THREADS=1

# The same bits where the same library computes. Another one adds up in another order: 1e-6 for a loss and 1e-5 for a gradient norm
# are what that changes in float32 (tests/support/expect_trajectory.hpp).
same_numbers() { # what, expected, actual: files of metrics
    local numbers='s/, "step_seconds.*//; s/, "time".*//; s/[{}"]//g'
    sed "$numbers" "$2" >expected
    sed "$numbers" "$3" >actual
    if [[ $("$llampi" --version | sed -n 's/^matrix products *//p') == "$(<matrix_products)" ]]; then
        diff expected actual || fail "$1: not the same numbers"
    else
        paste -d , expected actual | awk -F '[:,] *' '
            { for (i = 1; i <= NF / 2; i += 2) {
                  a = $(i + 1); b = $(i + 1 + NF / 2); d = a > b ? a - b : b - a
                  if ($i != $(i + NF / 2) || d > ($i ~ /loss/ ? 1e-6 : $i == "grad_norm" ? 1e-5 : 0) * a) { print; bad = 1 }
              } }
            END { exit bad }' || fail "$1: not near the same numbers"
    fi
}
loss_of() { # weights: their loss on the tokens
    "$llampi" evaluate --weights "$1" --data tokens.h5 --seq-len 16 --device cpu --json | sed -E 's/.*"loss": *([0-9.]+).*/\1/'
}

for version in "$source_dir"/tests/fixtures/version_*; do
    cp -r "$version" "$folder/files"
    cd "$folder/files"
    checkpoint=run/checkpoints/step-00000004.h5
    "$llampi" inspect tokens.h5 | grep -q 3,300 || fail "the token file"
    "$llampi" inspect "$checkpoint" --verify | tee inspected
    "$llampi" plan --config run/config.ini --ranks 2 >planned || fail "the plan"

    # Weights: straight from the checkpoint, as a Hugging Face folder, and back in a checkpoint.
    sed -n 's/.*"step": 4, "eval_loss": \([0-9.]*\).*/{"step": 4, "eval_loss": \1}/p' on_2_ranks.jsonl >recorded
    "$llampi" export --checkpoint "$checkpoint" --output exported
    "$llampi" import --weights exported --output imported.h5
    for weights in "$checkpoint" exported imported.h5; do
        printf '{"step": 4, "eval_loss": %.9g}\n' "$(loss_of "$weights")" >evaluated
        same_numbers "the loss of $weights" recorded evaluated
    done

    cp -r run again
    mpirun -n 2 "$llampi" train --config run/config.ini | tee printed
    grep -q '^resumed from run/checkpoints/step-00000004.h5 at step 4$' printed || fail "it did not resume"
    same_numbers "two ranks" on_2_ranks.jsonl run/metrics.jsonl
    "$llampi" train --config run/config.ini --run.dir=again
    same_numbers "one rank" on_1_rank.jsonl again/metrics.jsonl
    cd "$folder"
    rm -r files
done
