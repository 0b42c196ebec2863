#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slow_link_test.sh SOURCE LLAMPI: `llampi check` on four nodes, which are namespaces of this machine; the link of one is a tenth as fast as
# those of the others. It must name this node, and none before; and the node whose run.dir is another one. 77: skipped, without root, ip, tc or namespaces.
set -euo pipefail
# shellcheck source=tests/system/cluster/nodes.sh
source "$1/tests/system/cluster/nodes.sh"
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
for command in ip tc nsenter unshare mpirun; do
    command -v $command >/dev/null || { echo "skipped: there is no $command"; exit 77; }
done
((EUID == 0)) || { echo "skipped: namespaces need root"; exit 77; }
if ip link show llampi-br >/dev/null 2>&1; then echo "skipped: another test has the nodes"; exit 77; fi
ip netns add llampi-probe 2>/dev/null || { echo "skipped: no network namespaces here"; exit 77; }
ip netns del llampi-probe

prepare "$1" "$2"
base=$(mktemp -d)
trap 'nodes_down; rm -rf "$folder" "$base"' EXIT
nodes_up 4 || { echo "the nodes do not start"; exit 1; }
# shellcheck disable=SC2016
printf '%s\n' '#!/bin/bash' 'while [[ $1 == -* ]]; do shift; done' 'host=$1; shift' \
    "exec nsenter --target \"\$(<'$base/nodes/'\$host)\" --net --uts --ipc --mount --wd=\"\$PWD\" -- bash -c \"\$*\"" >"$base/agent"
chmod +x "$base/agent"
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=10.78.0.0/24 OMPI_MCA_oob_tcp_if_include=10.78.0.0/24
export OMPI_MCA_orte_tmpdir_base=/dev/shm OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=$base/agent OMPI_MCA_plm_rsh_no_tree_spawn=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_rmaps_base_oversubscribe=1 LLAMPI_RUN_BIND=none

# limit NODE RATE: what it sends and what it is sent
limit() {
    local end
    for end in "-n llampi${1#node} qdisc replace dev eth0" "qdisc replace dev llampi-${1#node}"; do
        # shellcheck disable=SC2086
        tc $end root tbf rate "$2" burst 1mb latency 200ms
    done
}
check() {
    status=0
    output=$(on node0 mpirun -n 4 --host node0,node1,node2,node3 "$llampi" check --model.config=config.json --data.train=train.h5 \
        --data.seq_len=16 --train.steps=12 --train.global_batch=12 --run.dir=run --skip-arithmetic 2>&1) || status=$?
    links=$(grep -E '^[A-Z]+  links' <<<"$output") || true
    echo "$links"
}

for node in node0 node1 node2 node3; do limit $node 1gbit; done
check
[[ $links == PASS* ]] || { echo "$output"; exit 1; }
limit node2 100mbit
check
[[ $status == 1 && $links == FAIL* && $links == *"all links of node node2 are slow ("* && $links != *node1* && $links != *node3* ]] || {
    printf '%s\nstatus %d: node2 is not named, or others are\n' "$output" "$status"
    exit 1
}

# A folder of its own on one node, as where a file system is not mounted. (Nodes have a minute and a half to see a file.)
limit node2 1gbit
mkdir run
on node3 mount -t tmpfs none "$PWD/run"
check
checkpoint=$(grep -E '^[A-Z]+  checkpoint' <<<"$output") || true
echo "$checkpoint"
[[ $status == 1 && $checkpoint == "FAIL"*"rank 3 on node3: run.dir = run is another folder here than on the node of rank 0; choose a folder on a file system that all nodes share" ]] || {
    printf '%s\nstatus %d: it is not said that node3 has another run.dir\n' "$output" "$status"
    exit 1
}
