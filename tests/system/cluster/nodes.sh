# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Sourced by cluster_test.sh: nodes of a cluster on one machine. A node is a set of namespaces: it has its own network with one link, host
# name, shared memory (or ranks of different nodes would share it) and mounts; files and processors are the machine's. Needs root.
#
#   nodes_up N         node0, node1, ... at 10.78.0.10, .11, ...
#   on NODE COMMAND... runs a command there
#   cut_link NODE      takes its link down
#   heal_link NODE     takes it up again
#   nodes_down         removes them, and what runs there

nodes_up() {
    local i pid
    nodes=$1
    mkdir -p "$base/nodes"
    {
        echo "127.0.0.1 localhost"
        for ((i = 0; i < nodes; ++i)); do echo "10.78.0.$((10 + i)) node$i"; done
    } >"$base/hosts"
    ip link add llampi-br type bridge
    ip link set llampi-br up
    for ((i = 0; i < nodes; ++i)); do
        ip netns add "llampi$i"
        ip link add "llampi-$i" type veth peer name eth0 netns "llampi$i"
        ip link set "llampi-$i" master llampi-br up
        ip -n "llampi$i" address add "10.78.0.$((10 + i))/24" dev eth0
        ip -n "llampi$i" link set lo up
        ip -n "llampi$i" link set eth0 up
        # A process that keeps the namespaces which have no name.
        # shellcheck disable=SC2016
        nsenter --net="/run/netns/llampi$i" unshare --uts --ipc --mount bash -c '
            mount --make-rprivate / && mount --bind "$1/hosts" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && hostname "$2" &&
            echo $$ >"$1/nodes/$2" && exec sleep infinity' node "$base" "node$i" </dev/null >"$base/nodes/log$i" 2>&1 &
        pid=$!
        disown
        until [[ -s $base/nodes/node$i ]]; do
            kill -0 $pid 2>/dev/null || { cat "$base/nodes/log$i" >&2; return 1; }
            sleep 0.05
        done
    done
}

# Not `ip netns exec`, which mounts another /sys.
on() {
    local node=$1
    shift
    nsenter --target "$(<"$base/nodes/$node")" --net --uts --ipc --mount --wd="$PWD" -- "$@"
}

cut_link() { ip -n "llampi${1#node}" link set eth0 down; }
heal_link() { ip -n "llampi${1#node}" link set eth0 up; }

# Processes whose network is the node's.
processes_on() {
    local wanted process
    wanted=$(stat -Lc %i "/run/netns/llampi${1#node}") || return 0
    for process in /proc/[0-9]*; do
        if [[ $(stat -Lc %i "$process/ns/net" 2>/dev/null) == "$wanted" ]]; then echo "${process#/proc/}"; fi
    done
}

nodes_down() {
    local i pids
    for ((i = 0; i < ${nodes:-0}; ++i)); do
        mapfile -t pids < <(processes_on "node$i")
        if ((${#pids[@]})); then kill -9 "${pids[@]}" 2>/dev/null; fi
        ip link del "llampi-$i" 2>/dev/null
        ip netns del "llampi$i" 2>/dev/null
    done
    ip link del llampi-br 2>/dev/null
    return 0
}
