# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced: lets Open MPI run on any workstation or container, oversubscribed or as root. What is already
# set stays. Jobs on a cluster do not use this file; their settings belong to jobscripts/sites/.

set_default() {
    if eval "[ -z \"\${$1+set}\" ]"; then export "$1=$2"; fi
}

if [ "$(id -u)" = 0 ]; then
    set_default OMPI_ALLOW_RUN_AS_ROOT 1
    set_default OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
fi

# Ranks that wait give their core to ranks that work; matters wherever there are more ranks than cores.
set_default OMPI_MCA_mpi_yield_when_idle 1

# MPI-IO through ROMIO: a few times faster than OMPIO, and a full disk is an error, not a hang.
# Binding would put all threads of a rank on one core.
case "$(mpirun --version 2>/dev/null)" in
    *"(Open MPI) 4."*)
        set_default OMPI_MCA_io romio321
        set_default OMPI_MCA_rmaps_base_oversubscribe 1
        set_default OMPI_MCA_hwloc_base_binding_policy none
        ;;
    *"(Open MPI) 5."*)
        set_default OMPI_MCA_io romio341
        set_default PRTE_MCA_rmaps_default_mapping_policy :oversubscribe
        set_default PRTE_MCA_hwloc_default_binding_policy none
        ;;
esac
unset -f set_default
