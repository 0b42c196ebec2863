# SPDX-License-Identifier: Apache-2.0
# A cluster for SimGrid: awk -v ranks=16 -v per_node=8 -v nics=8 -v in_gb_s=360 -v in_us=3 -v node_gb_s=400 -v out_us=5 -v scale=1024 -f platform.awk
# Each rank is a host with a link of its own to the others of its node and shares the NICs of its node, `nics` of them, with the
# other ranks. Every link has two directions that do not share. What connects the nodes limits nothing.
# `in_gb_s` is of a rank, `node_gb_s` of all NICs of a node together, GB/s in each direction.
function link(name, gb_s, us) {
    printf "    <link id=\"%s\" bandwidth=\"%.9gBps\" latency=\"%.9gs\" sharing_policy=\"SHARED\"/>\n", name, gb_s * 1e9 / scale, us * 1e-6
}
function node(rank) { return int(rank / per_node) }
function nic(rank) { return node(rank) "_" int((rank % per_node) * nics / per_node) }
BEGIN {
    print "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">"
    print "<platform version=\"4.1\">\n  <zone id=\"cluster\" routing=\"Full\">"
    for (r = 0; r < ranks; r++) printf "    <host id=\"rank%d\" speed=\"1Gf\"/>\n", r
    for (r = 0; r < ranks; r++) {
        link("self" r, 1e6, 0); link("out" r, in_gb_s, in_us); link("in" r, in_gb_s, 0)
        if (r % per_node % (per_node / nics) == 0) { link("nic_out" nic(r), node_gb_s / nics, out_us); link("nic_in" nic(r), node_gb_s / nics, 0) }
    }
    for (a = 0; a < ranks; a++)
        for (b = 0; b < ranks; b++) {
            if (a == b) { first = "self" a; last = "" }
            else if (node(a) == node(b)) { first = "out" a; last = "in" b }
            else { first = "nic_out" nic(a); last = "nic_in" nic(b) }
            printf "    <route src=\"rank%d\" dst=\"rank%d\" symmetrical=\"NO\"><link_ctn id=\"%s\"/>%s</route>\n", a, b, first, (last == "" ? "" : "<link_ctn id=\"" last "\"/>")
        }
    print "  </zone>\n</platform>"
}
