# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by bash: lets the programs of this bundle run from wherever its folder lies. bin/llampi and bin/mpirun do it
# themselves; in a shell of your own, `source env.sh` puts them first in PATH. Changes nothing but the environment.
#
# The bundle's own libraries are found through run paths, which come before LD_LIBRARY_PATH.

_bundle=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
case :$PATH: in *:"$_bundle/bin":*) ;; *) export PATH=$_bundle/bin:$PATH ;; esac

# ---- Open MPI and PMIx, which were built for other folders ---------------------------------------------------------

export OPAL_PREFIX=$_bundle OPAL_BINDIR=$_bundle/bin OPAL_LIBDIR=$_bundle/lib OPAL_PKGLIBDIR=$_bundle/lib/openmpi
export OPAL_DATADIR=$_bundle/share OPAL_PKGDATADIR=$_bundle/share/openmpi OPAL_SYSCONFDIR=$_bundle/etc
export PMIX_PREFIX=$_bundle PMIX_LIBDIR=$_bundle/lib PMIX_PKGLIBDIR=$_bundle/lib/pmix
export PMIX_DATADIR=$_bundle/share PMIX_PKGDATADIR=$_bundle/share/pmix PMIX_SYSCONFDIR=$_bundle/etc
export HWLOC_PLUGINS_PATH=$_bundle/lib/hwloc # there are none, and the machine's may be of another hwloc
export OMPI_MCA_orte_launch_agent=$_bundle/bin/orted # on other nodes, which see the same folder
if ! command -v ssh >/dev/null && ! command -v rsh >/dev/null && ! command -v srun >/dev/null; then
    export OMPI_MCA_plm=${OMPI_MCA_plm:-isolated} # only this machine
fi
if [[ $(id -u) == 0 ]]; then # as in containers
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# ---- fabrics that a site file asks for: their plugins are not in the bundle, and MPI would not start ----------------

if [[ ${OMPI_MCA_pml:-ob1} != ob1 ]]; then
    if [[ ${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}} == 0 ]]; then # one of the ranks
        echo "env.sh: OMPI_MCA_pml=$OMPI_MCA_pml is unset: the bundle's Open MPI has no UCX and no libfabric, and sends through shared memory and TCP (docs/bundle.md)" >&2
    fi
    unset OMPI_MCA_pml
fi
unset OMPI_MCA_mtl

# ---- the C++ library: the machine's, unless it is absent or too old ------------------------------------------------

case $(ldd "$_bundle/libexec/llampi" 2>&1) in
    *"GLIBCXX_"* | *"CXXABI_"* | *"GCC_"* | *"libstdc++.so.6 => not found"* | *"libgcc_s.so.1 => not found"*)
        export LD_LIBRARY_PATH=$_bundle/lib/fallback${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        ;;
esac

# ---- CUDA libraries, where there is a GPU --------------------------------------------------------------------------

if [[ -e /dev/nvidiactl || -e /dev/dxg || -e /proc/driver/nvidia/version ]] || command -v nvidia-smi >/dev/null; then
    # shellcheck source=scripts/bundle/cuda-libraries.sh
    source "$_bundle/scripts/cuda-libraries.sh"
    add_cuda_libraries "$_bundle/lib/libllampi_cuda.so"
fi
unset _bundle
