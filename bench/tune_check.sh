#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tune_check.sh LLAMPI [FOLDER [ROUNDS]]: measures 24 configurations of a small model on two ranks, and the one that `llampi plan --tune` picks
# with the figures of this machine, which FOLDER/machine.json has or gets from `llampi bench --calibrate`. Rounds are interleaved, and the fastest
# step of all counts: other programs slow steps down and never speed them up. Prints a table with a verdict per row; exit status 1 if the pick is
# more than 5 % slower than any of the 24. Two cores, minutes; STEPS (15) of each measurement. ROUNDS 0 measures nothing and judges
# FOLDER/results. After scripts/mpi-env.sh.
set -euo pipefail
llampi=$1 folder=${2:-runs/tune_check} rounds=${3:-3}
export LC_ALL=C
machine=$folder/machine.json steps=${STEPS:-15}
# shellcheck source=bench/plan_models.sh
. "$(dirname "$0")/plan_models.sh"
mkdir -p "$folder"
[[ -f $machine || $rounds == 0 ]] || calibrate
write_model model 256 688 3 2048
cat >"$folder/run.ini" <<EOF
[model]
config = $folder/model
[data]
seq_len = 128
[train]
micro_batch = 1
global_batch = 16
EOF
if ((rounds > 0)); then
    rm -f "$folder/tuned.ini"
    "$llampi" plan --config "$folder/run.ini" --ranks 2 --threads 1 --machine "$machine" --tune --output "$folder/tuned.ini" >"$folder/tune.log"
    sed -n '/: the configuration with$/,$p' "$folder/tune.log"
fi

rows=()
for strategy in full_shard shard_grad_op no_shard; do
    for micro_batch in 1 2 4 8; do
        rows+=("--train.micro_batch=$micro_batch --fsdp.strategy=$strategy")
    done
    for micro_batch in 2 4; do
        rows+=("--train.micro_batch=$micro_batch --fsdp.strategy=$strategy --fsdp.accumulate=unsharded")
    done
    for micro_batch in 4 8; do
        rows+=("--train.micro_batch=$micro_batch --fsdp.strategy=$strategy --activation.checkpointing=full")
    done
done

add() { # name, options...
    local seconds expected # each by itself: what fails inside an argument would go unseen
    seconds=$(measured 2 1 "${@:2}")
    expected=$(predicted 2 1 "${@:2}")
    echo "$1 $seconds $expected" >>"$folder/results"
}
((rounds == 0)) || : >"$folder/results"
for ((round = 1; round <= rounds; ++round)); do
    echo "round $round of $rounds" >&2
    add tuned --config "$folder/tuned.ini"
    for row in "${rows[@]}"; do
        read -ra options <<<"$row"
        options+=(--config "$folder/run.ini")
        add "${row// /,}" "${options[@]}"
    done
done

echo "| configuration | measured, ms | predicted, ms | tuned against it | at most 5 % slower |"
echo "|---|---:|---:|---:|---|"
awk '!($1 in best) || $2 < best[$1] { best[$1] = $2 } { predicted[$1] = $3 } END { for (name in best) print best[name], predicted[name], name }' \
    "$folder/results" | sort -g >"$folder/sorted"
awk '
    NR == FNR { if ($3 == "tuned") tuned = $1; next }
    {
        slower = 100 * (tuned / $1 - 1)
        gsub(",", " ", $3)
        printf "| %s | %.1f | %.1f | %+.1f %% | %s |\n", $3, 1e3 * $1, 1e3 * $2, slower, slower <= 5 ? "good" : "BAD"
    }' "$folder/sorted" "$folder/sorted"
awk '
    $3 == "tuned" { tuned = $1; next }
    !fastest { fastest = $1 }
    END {
        slower = fastest > 0 ? 100 * (tuned / fastest - 1) : 0
        printf "\nthe step of plan --tune takes %.1f ms, the fastest of %d others %.1f ms (%+.1f %%): %s\n", 1e3 * tuned, NR - 1, 1e3 * fastest, slower,
            (tuned > 0 && slower <= 5) ? "good" : "BAD"
        exit !((tuned > 0) && (slower <= 5))
    }' "$folder/sorted"
