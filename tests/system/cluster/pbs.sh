# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Sourced by cluster_test.sh, after nodes.sh: the stand-in for PBS (pbs_commands.sh) on the nodes.
#
#   pbs_up                        makes its folder, $base/pbs
#   pbs_submit OPTION... SCRIPT   qsub, as on a login node: prints the number of the job
#   pbs_has_ended JOB
#   pbs_signal JOB SIGNAL         qsig

pbs_up() {
    local i command
    mkdir -p "$base/pbs/bin"
    for command in qsub qstat qsig pbs_run; do ln -s "$here/pbs_commands.sh" "$base/pbs/bin/$command"; done
    for ((i = 0; i < nodes; ++i)); do echo "node$i"; done >"$base/pbs/nodes"
    cat >"$base/pbs/on" <<END
#!/bin/bash
$(declare -f on)
base=$base
on "\$@"
END
    chmod +x "$base/pbs/on"
    echo "PATH=$base/pbs/bin:\$PATH" >"$base/pbs/.profile"
    export PBS_STAND_IN=$base/pbs
}

pbs_submit() {
    local job
    job=$("$base/pbs/bin/qsub" "$@") && echo "${job%%.*}"
}
pbs_has_ended() { [[ -e $base/pbs/$1/status ]]; }
pbs_signal() { "$base/pbs/bin/qsig" "$2" "$1"; }

pbs_down() {
    local session
    for session in "$base"/pbs/*/session; do
        if [[ -s $session && ! -e ${session%/session}/status ]]; then pkill -KILL --session "$(<"$session")"; fi
    done
    return 0
}
