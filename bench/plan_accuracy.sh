#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# plan_accuracy.sh LLAMPI [FOLDER [ROUNDS]]: steps of 12 configurations that the figures of this machine were not fitted to, measured and predicted by
# `llampi plan --machine`. FOLDER/machine.json has the figures; without it, `llampi bench --calibrate` with another model writes new ones in each round.
# Rounds are interleaved, and of all rounds the fastest step counts, and the shortest prediction: other programs slow steps and calibrations down and
# never speed them up. Prints a table with a verdict per row; exit status 1 if a prediction is more than 15 % off. Two cores, minutes; STEPS (15) of each
# measurement. ROUNDS 0 measures nothing and judges FOLDER/results.
# After scripts/mpi-env.sh.
set -euo pipefail
llampi=$1 folder=${2:-runs/plan_accuracy} rounds=${3:-3}
export LC_ALL=C
given=$folder/machine.json machine=$given steps=${STEPS:-15}
# shellcheck source=bench/plan_models.sh
. "$(dirname "$0")/plan_models.sh"
mkdir -p "$folder"
write_model small 128 344 4 1024
write_model middle 256 688 3 2048
write_model wide 512 1376 2 4096
write_model vocabulary 320 864 2 8000

# ranks threads model sequences tokens global_batch options
rows=(
    "1 1 small 8 64 8"
    "1 1 middle 4 128 4"
    "1 1 wide 2 128 2"
    "1 1 middle 1 512 1"
    "1 1 middle 2 256 2 --activation.checkpointing=full"
    "1 1 vocabulary 4 128 4"
    "1 1 middle 2 128 8"
    "1 2 middle 8 128 8"
    "1 2 wide 2 256 2"
    "2 1 middle 4 128 8"
    "2 1 wide 1 256 2 --fsdp.strategy=no_shard"
    "2 1 vocabulary 1 256 4 --activation.checkpointing=full"
)
((rounds == 0)) || : >"$folder/results"
for ((round = 1; round <= rounds; ++round)); do
    echo "round $round of $rounds" >&2
    if [[ ! -f $given ]]; then
        machine=$folder/machine-$round.json
        calibrate
    fi
    for row in "${rows[@]}"; do
        read -r ranks threads model sequences tokens batch more <<<"$row"
        read -ra options <<<"$more"
        options+=(--model.config="$folder/$model" --data.seq_len="$tokens" --train.micro_batch="$sequences" --train.global_batch="$batch")
        seconds=$(measured "$ranks" "$threads" "${options[@]}") # by itself: what fails inside an argument would go unseen
        expected=$(predicted "$ranks" "$threads" "${options[@]}")
        echo "${row// /,} $seconds $expected" >>"$folder/results"
    done
done

echo "| ranks, threads, model, sequences, tokens, global batch | measured, ms | predicted, ms | error | within 15 % |"
echo "|---|---:|---:|---:|---|"
awk '
    !($1 in best) { order[++rows] = $1; best[$1] = $2; predicted[$1] = $3 }
    $2 < best[$1] { best[$1] = $2 }
    $3 < predicted[$1] { predicted[$1] = $3 }
    END {
        for (i = 1; i <= rows; ++i) {
            name = order[i]
            error = 100 * (predicted[name] / best[name] - 1)
            verdict = error <= 15 && error >= -15 ? "good" : "BAD"  # so is what is not a number
            bad += verdict == "BAD"
            gsub(",", " ", order[i])
            printf "| %s | %.1f | %.1f | %+.1f %% | %s |\n", order[i], 1e3 * best[name], 1e3 * predicted[name], error, verdict
        }
        printf "\n%d of %d within 15 %%: %s\n", rows - bad, rows, bad || !rows ? "BAD" : "good"
        exit(bad || !rows)
    }' "$folder/results"
