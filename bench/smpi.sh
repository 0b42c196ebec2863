#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Collectives and steps on networks that SimGrid simulates, beside the formula of `llampi plan`: docs/scaling.md.
#   bench/smpi.sh BUILD FOLDER collectives     times of collectives, and the fit of the formula's constants
#   bench/smpi.sh BUILD FOLDER steps           times of steps, and how far the formula is off
#   bench/smpi.sh BUILD FOLDER table           what to choose, from 8 to 512 ranks, by the formula
# Needs Debian's libsimgrid-dev and a built BUILD. Rows are kept in FOLDER as collectives.csv, steps.csv and table.csv. RANKS ("8 16 32 64"; of the
# table "8 16 32 64 128 512"), NETWORKS, MICRO_BATCHES ("1 4") and STRATEGIES ("full_shard shard_grad_op hybrid_shard") take others; FLAGS are more
# keys of the run.
set -euo pipefail
build=$(realpath "$1") folder=$2 what=$3
repository=$(realpath "$(dirname "$0")/..")
mkdir -p "$folder"
cd "$folder"

# name: ranks of a node, NICs, GB/s in a node (of a rank), GB/s of all NICs of a node, microseconds between nodes, device, TFLOP/s of a rank
network() {
    case $1 in
        infiniband-8x400) echo 8 8 360 400 5 h100 500 ;;
        infiniband-1x200) echo 4 1 200 25 5 a100 150 ;;
        ethernet-1x100) echo 8 1 200 12.5 30 a100 150 ;;
        ethernet-1x25) echo 4 1 20 3.125 50 a100 150 ;;
        *) echo "no network $1" >&2; exit 2 ;;
    esac
}
networks=${NETWORKS:-infiniband-8x400 infiniband-1x200 ethernet-1x100 ethernet-1x25}
in_node_us=3

# Time is what the links' figures give: no factors of SMPI's for the Ethernet of its authors, no TCP window, and what a rank
# computes takes none. Traffic in one direction takes 5 % of the other (network/crosstraffic, SimGrid's default).
simgrid_flags=(-no-privatize --cfg=smpi/simulate-computation:no --cfg=smpi/bw-factor:0:1 --cfg=smpi/lat-factor:0:1
    --cfg=network/TCP-gamma:0 --cfg=network/weight-S:0 --cfg=smpi/async-small-thresh:0 --cfg=smpi/send-is-detached-thresh:0
    --cfg=smpi/wtime:0 --cfg=smpi/test:0 --cfg=surf/precision:1e-9 --log=root.thres:warning)

cmake --build "$build" --target smpi_formula llampi >/dev/null
formula=$build/bench/smpi_formula

nodes_of() {
    local per_node
    read -r per_node _ < <(network "$1")
    echo $((($2 + per_node - 1) / per_node))
}

compile_replay() {
    local source
    mkdir -p objects
    for source in "$repository"/src/comm/mpi/{check,handles,stream_queue,exchange_levels,mpi_group,tree_order}.cpp \
        "$repository"/src/comm/{levels,split}.cpp "$repository"/src/core/*.cpp "$repository"/bench/smpi/replay.cpp; do
        smpicxx -std=c++20 -O2 -include "$repository/bench/smpi/wait_in_test.hpp" -I"$repository/include" -I"$repository/src" \
            -c "$source" -o "objects/$(basename "$source").o"
    done
    smpicxx objects/*.o -lfmt -o replay
}

# platform NETWORK RANKS SCALE PROCESSES_OF_A_RANK
platform() {
    local per_node nics in_gb_s node_gb_s out_us rank process
    read -r per_node nics in_gb_s node_gb_s out_us _ < <(network "$1")
    awk -v ranks="$2" -v per_node="$per_node" -v nics="$nics" -v in_gb_s="$in_gb_s" -v in_us="$in_node_us" -v node_gb_s="$node_gb_s" \
        -v out_us="$out_us" -v scale="$3" -f "$repository/bench/smpi/platform.awk" >platform.xml
    for ((rank = 0; rank < $2; rank++)); do
        for ((process = 0; process < $4; process++)); do echo "rank$rank"; done
    done >hosts
}

# simulate PROCESSES FLAGS... -- REPLAY'S ARGUMENTS
simulate() {
    local processes=$1 flags=()
    shift
    while [[ $1 != -- ]]; do flags+=("$1"); shift; done
    shift
    smpirun -np "$processes" -platform platform.xml -hostfile hosts "${simgrid_flags[@]}" "${flags[@]}" ./replay "$@"
}

collectives() {
    local network ranks route per_node nics in_gb_s node_gb_s out_us
    for network in $networks; do
        read -r per_node nics in_gb_s node_gb_s out_us _ < <(network "$network")
        for ranks in ${RANKS:-8 16 32 64}; do
            for scale in 1 1024; do
                sizes=(65536 1048576)
                [[ $scale == 1 ]] || sizes=(67108864 268435456 1073741824)
                platform "$network" "$ranks" "$scale" 1
                for route in one two; do
                    [[ $route == one || $(nodes_of "$network" "$ranks") -gt 1 ]] || continue
                    # to start a message takes one microsecond
                    simulate "$ranks" --cfg=smpi/ois:0:1e-6:0 -- collectives "$per_node" "$route" "$scale" "${sizes[@]}" |
                        awk -v head="$route,$ranks,$(((ranks + per_node - 1) / per_node)),$in_gb_s,$in_node_us" -v gb_s="$node_gb_s" \
                            -v ranks="$((ranks < per_node ? ranks : per_node))" -v us="$out_us" -v nics="$nics" '{ print head "," gb_s / ranks "," us "," $0 "," ranks "," nics }'
                done
            done
        done
    done
}

# list NETWORK RANKS STRATEGY MICRO_BATCHES: step.json
list() {
    local per_node nics in_gb_s node_gb_s out_us device tflops
    read -r per_node nics in_gb_s node_gb_s out_us device tflops < <(network "$1")
    # shellcheck disable=SC2086
    "$build/llampi" plan --config="$repository/input/llama3-8b.ini" --model.config="$repository/input/llama3-8b" --device "$device" \
        --ranks "$2" --per-node "$per_node" --fsdp.strategy="$3" --train.micro_batch=1 --train.global_batch=$(($2 * $4)) \
        --tflops "$tflops" --in-node-gb-s "$in_gb_s" --network-gb-s "$node_gb_s" --latency-us "$out_us" ${FLAGS:-} --json --actions >step.json
}

steps() {
    local network ranks micro_batches strategy route latency streams simulated predicted
    for network in $networks; do
        read -r _ _ _ _ latency _ < <(network "$network")
        for ranks in ${RANKS:-8 16 32 64}; do
            for micro_batches in ${MICRO_BATCHES:-1 4}; do
                for strategy in ${STRATEGIES:-full_shard shard_grad_op hybrid_shard}; do
                    [[ $strategy != hybrid_shard || $(nodes_of "$network" "$ranks") -gt 1 ]] || continue
                    list "$network" "$ranks" "$strategy" "$micro_batches"
                    streams=$(grep -o '"stream":"[a-z_]*"' step.json | sort -u | wc -l)
                    platform "$network" "$ranks" 1024 "$streams"
                    for route in two one; do
                        # One level takes long to simulate, and hybrid_shard has no other.
                        [[ $route == two || ($strategy != hybrid_shard && $micro_batches == 1 && $(nodes_of "$network" "$ranks") -gt 1) ]] ||
                            continue
                        simulated=$(simulate $((ranks * streams)) -- step step.json "$route" 1024)
                        predicted=$("$formula" step step.json "$route" "$latency")
                        echo "$network,$ranks,$micro_batches,$strategy,$route,$simulated,$predicted"
                    done
                done
            done
        done
    done
}

step_errors() {
    awk -F, '{ e = $7 / $6 - 1; if (e < 0) e = -e; n++; sum += e; if (e > most) { most = e; row = $0 } }
        END { printf "%d steps, error of the formula: mean %.2f %%, most %.2f %% (%s)\n", n, 100 * sum / n, 100 * most, row
              printf "verdict: %s: no step is off by more than 2 %%\n", most <= 0.02 ? "yes" : "NO"; exit most > 0.02 }' "$1"
}

table() {
    local network ranks micro_batches strategy route latency
    for network in $networks; do
        read -r _ _ _ _ latency _ < <(network "$network")
        for ranks in ${RANKS:-8 16 32 64 128 512}; do
            for micro_batches in ${MICRO_BATCHES:-1 4}; do
                for strategy in ${STRATEGIES:-full_shard shard_grad_op hybrid_shard}; do
                    [[ $strategy != hybrid_shard || $(nodes_of "$network" "$ranks") -gt 1 ]] || continue
                    list "$network" "$ranks" "$strategy" "$micro_batches"
                    for route in two one; do
                        [[ $route == two || $strategy == full_shard ]] || continue
                        echo "$network,$ranks,$micro_batches,$strategy,$route,$("$formula" waiting step.json "$route" "$latency")"
                    done
                done
            done
        done
    done
}

case $what in
    collectives)
        compile_replay
        collectives | tee collectives.csv
        "$formula" fit collectives.csv
        ;;
    steps)
        compile_replay
        echo network,ranks,micro_batches,strategy,levels,simulated_seconds,predicted_seconds
        steps | tee steps.csv
        step_errors steps.csv
        ;;
    table)
        echo network,ranks,micro_batches,strategy,levels,waiting_seconds,waiting_percent
        table | tee table.csv
        ;;
    *)
        echo "$what is not one of collectives, steps, table" >&2
        exit 2
        ;;
esac
