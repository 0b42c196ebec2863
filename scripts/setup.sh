#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that the build finds what it needs. What is missing is installed through apt where that is possible
# (as root or through sudo); otherwise this prints what to install, exits 2 and has changed nothing.
#
#   scripts/setup.sh [--tests] [--format] [--tidy] [--shellcheck] [--docs] [--manual] [--bundle] [--report]
#
# --tests adds GoogleTest, and what single tests use (they are skipped without it), --format adds clang-format, --tidy clang-tidy,
# --shellcheck shellcheck, --docs Doxygen, --manual MkDocs, --bundle what make-bundle.sh uses. --report adds what two tests compare
# reports and event files with: Chromium, and TensorBoard, which pip installs into build/tensorboard.
# GEMM=cblas in the environment asks for a CBLAS instead of oneDNN. CXX and CMAKE_PREFIX_PATH are respected.
set -uo pipefail

# name | what it is | Debian, Ubuntu | Fedora, RHEL
pieces='
compiler | C++20 compiler: g++ 12, clang++ 14 or newer | g++ | gcc-c++
openmp   | OpenMP for clang++ | libomp-dev | libomp-devel
make     | make or ninja | make | make
cmake    | CMake 3.25 or newer | cmake | cmake
mpi      | MPI: mpicxx and mpirun | libopenmpi-dev openmpi-bin | openmpi-devel
hdf5     | HDF5: h5pcc or h5cc | libhdf5-openmpi-dev | hdf5-openmpi-devel
onednn   | oneDNN (or a CBLAS: make build GEMM=cblas) | libdnnl-dev ocl-icd-opencl-dev | onednn-devel
opencl   | OpenCL headers, which the CMake package of this oneDNN asks for | ocl-icd-opencl-dev | ocl-icd-devel
cblas    | CBLAS: OpenBLAS, MKL, BLIS or AOCL | libopenblas-dev | openblas-devel
boost    | Boost.Program_options | libboost-program-options-dev | boost-devel
json     | nlohmann-json | nlohmann-json3-dev | json-devel
fmt      | fmt | libfmt-dev | fmt-devel
zlib     | zlib, for checksums and compressed texts | zlib1g-dev | zlib-devel
deflate  | libdeflate, for checksums | libdeflate-dev | libdeflate-devel
zstd     | zstd, for compressed texts | libzstd-dev | libzstd-devel
hwloc    | hwloc 2.1 or newer, for cores | libhwloc-dev | hwloc-devel
pcre2    | PCRE2 10.40 or newer, for tokenizers | libpcre2-dev | pcre2-devel
utf8proc | utf8proc, for tokenizers | libutf8proc-dev | utf8proc-devel
gtest    | GoogleTest | libgtest-dev | gtest-devel
gmock    | GoogleMock | libgmock-dev | gmock-devel
h5py     | h5py, for one test | python3-h5py | python3-h5py
qemu     | qemu-x86_64, for one test of other processors | qemu-user | qemu-user
fuzzer   | clang++ with libFuzzer, for the fuzz tests | clang libclang-rt-dev | clang compiler-rt
format   | clang-format | clang-format | clang-tools-extra
tidy     | clang-tidy | clang-tidy | clang-tools-extra
shellcheck | shellcheck | shellcheck | ShellCheck
docs     | Doxygen | doxygen | doxygen
manual   | MkDocs with the Material theme | mkdocs mkdocs-material | mkdocs mkdocs-material
patchelf | patchelf | patchelf | patchelf
chromium | Chromium, for the test of reports | chromium | chromium
venv     | Python with venv, into which TensorBoard is installed | python3-venv | python3
'
optional=" h5py qemu fuzzer "

wanted="compiler openmp make cmake mpi hdf5 boost json fmt zlib deflate zstd hwloc pcre2 utf8proc"
if [[ ${GEMM:-onednn} == cblas ]]; then wanted+=" cblas"; else wanted+=" onednn opencl"; fi
for argument in "$@"; do
    case $argument in
        --tests) wanted+=" gtest gmock h5py qemu fuzzer" ;;
        --format) wanted+=" format" ;;
        --tidy) wanted+=" tidy" ;;
        --shellcheck) wanted+=" shellcheck" ;;
        --docs) wanted+=" docs" ;;
        --manual) wanted+=" manual" ;;
        --bundle) wanted+=" patchelf" ;;
        --report) wanted+=" chromium venv" ;;
        *)
            echo "setup: unknown argument $argument; usage: scripts/setup.sh [--tests] [--format] [--tidy] [--shellcheck] [--docs] [--manual] [--bundle] [--report]" >&2
            exit 2
            ;;
    esac
done

if [[ -n ${CXX:-} && -z $(command -v "${CXX%% *}") ]]; then
    echo "setup: there is no ${CXX%% *}, which CXX asks for; install it, or unset CXX" >&2
    exit 2
fi

# ---- what is there ---------------------------------------------------------------------------------------------

tensorboard=$(dirname "${BASH_SOURCE[0]}")/../build/tensorboard

# Besides the system's folders, the places where CMake looks and where modules put things.
prefixes=()
for name in CMAKE_PREFIX_PATH HDF5_ROOT Boost_ROOT BOOST_ROOT dnnl_ROOT DNNLROOT fmt_ROOT nlohmann_json_ROOT GTest_ROOT \
    MKLROOT; do
    IFS=: read -r -a folders <<<"${!name:-}"
    prefixes+=("${folders[@]}")
done

at_least() { # at_least 3.25 VERSION
    [[ -n $2 && $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]
}

has_library() { # has_library NAME, for libNAME.so or libNAME.a
    local folder suffix found library_path=${LD_LIBRARY_PATH:-}
    for suffix in so a; do
        for folder in "${prefixes[@]/%//lib}" "${prefixes[@]/%//lib64}" ${library_path//:/ }; do
            if [[ -e $folder/lib$1.$suffix ]]; then return 0; fi
        done
        found=$("${compiler[@]}" -print-file-name="lib$1.$suffix") # a full path when the compiler finds it
        if [[ $found == */* ]]; then return 0; fi
    done
    return 1
}

has_hdf5() { # the parallel build or the serial one
    local prefix
    for prefix in "${prefixes[@]}"; do
        if [[ -x $prefix/bin/h5pcc || -x $prefix/bin/h5cc ]]; then return 0; fi
    done
    command -v h5pcc >/dev/null || command -v h5cc >/dev/null || pkg-config --exists hdf5-openmpi 2>/dev/null ||
        pkg-config --exists hdf5 2>/dev/null
}

python_with() { # python_with MODULE: the first Python that has it
    local python
    for python in python3 /usr/bin/python3 "$tensorboard/bin/python"; do
        if "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)" 2>/dev/null; then
            echo "$python"
            return 0
        fi
    done
    return 1
}

has_chromium() { # by the names that system_watching_browser tries
    local name
    for name in chromium chromium-browser google-chrome chrome; do
        command -v "$name" >/dev/null && return 0
    done
    return 1
}

has_manual() { # the theme as Debian packages it, or a Python package of the Python that mkdocs uses
    local mkdocs python
    mkdocs=$(command -v mkdocs) || return 1
    [[ ! -d /usr/share/mkdocs/themes/material ]] || return 0
    python=$(sed -n '1s/^#!//p' "$mkdocs")
    ${python:-python3} - 2>/dev/null <<'END'
import importlib.metadata as m, sys
sys.exit(not any(e.name == "material" for e in m.entry_points(group="mkdocs.themes")))
END
}

has_fuzzer() { # as cmake/Fuzz.cmake asks
    local clang
    for clang in clang++ clang++-{19,18,17,16,15,14}; do
        command -v "$clang" >/dev/null || continue
        "$clang" -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null \
            <<<'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
        return # the first one counts
    done
    return 1
}

find_missing() {
    local candidate prefix includes=() absent
    compiler=()
    for candidate in "${CXX:-c++}" g++ clang++; do
        if command -v "${candidate%% *}" >/dev/null; then
            read -r -a compiler <<<"$candidate" # CXX may be "ccache g++"
            break
        fi
    done
    for prefix in "${prefixes[@]}"; do
        includes+=("-I$prefix/include")
    done

    # One pass of the preprocessor answers for all headers, wherever the compiler finds them.
    absent="compiler json fmt zlib deflate zstd hwloc pcre2 utf8proc boost gtest gmock onednn cblas openmp"
    if ((${#compiler[@]})); then
        absent=$("${compiler[@]}" "${includes[@]}" -E -P -x c++ - 2>/dev/null <<'PROBE' || echo "$absent"
#if defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 12
compiler
#endif
#if !__has_include(<omp.h>)
openmp
#endif
#if !__has_include(<nlohmann/json.hpp>)
json
#endif
#if !__has_include(<fmt/format.h>)
fmt
#endif
#if !__has_include(<zlib.h>)
zlib
#endif
#if !__has_include(<libdeflate.h>)
deflate
#endif
#if !__has_include(<zstd.h>)
zstd
#endif
#if !__has_include(<hwloc.h>)
hwloc
#endif
#if !__has_include(<pcre2.h>)
pcre2
#endif
#if !__has_include(<utf8proc.h>)
utf8proc
#endif
#if !__has_include(<boost/program_options.hpp>)
boost
#endif
#if !__has_include(<gtest/gtest.h>)
gtest
#endif
#if !__has_include(<gmock/gmock.h>)
gmock
#endif
#if !__has_include(<dnnl.h>) && !__has_include(<oneapi/dnnl/dnnl.h>)
onednn
#endif
#if __has_include(<oneapi/dnnl/dnnl_config.h>)
#include <oneapi/dnnl/dnnl_config.h>
#if DNNL_GPU_RUNTIME == DNNL_RUNTIME_OCL && !__has_include(<CL/cl.h>)
opencl
#endif
#endif
#if !__has_include(<cblas.h>) && !__has_include(<openblas/cblas.h>) && !__has_include(<mkl_cblas.h>)
cblas
#endif
PROBE
        )
        # The header comes with all of Boost's headers, the library in a package of its own.
        has_library boost_program_options || has_library boost_program_options-mt || absent+=" boost"
        case $("${compiler[@]}" --version | head -n 1) in
            *clang*) ;;
            *) absent=${absent//openmp/} ;; # comes with g++
        esac
    else
        absent=${absent//openmp/}
    fi

    command -v make >/dev/null || command -v ninja >/dev/null || absent+=" make"
    at_least 3.25 "$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')" || absent+=" cmake"
    command -v mpicxx >/dev/null && command -v mpirun >/dev/null || absent+=" mpi"
    has_hdf5 || absent+=" hdf5"
    case " $wanted " in *" h5py "*) python_with h5py >/dev/null || absent+=" h5py" ;; esac
    [[ $(uname -m) != x86_64 ]] || command -v qemu-x86_64 >/dev/null || absent+=" qemu"
    case " $wanted " in *" fuzzer "*) has_fuzzer || absent+=" fuzzer" ;; esac
    command -v clang-format-14 >/dev/null || command -v clang-format >/dev/null || absent+=" format"
    command -v clang-tidy-14 >/dev/null || command -v clang-tidy >/dev/null || absent+=" tidy"
    command -v shellcheck >/dev/null || absent+=" shellcheck"
    command -v doxygen >/dev/null || absent+=" docs"
    case " $wanted " in *" manual "*) has_manual || absent+=" manual" ;; esac
    command -v patchelf >/dev/null || absent+=" patchelf"
    case " $wanted " in
        *" venv "*)
            has_chromium || absent+=" chromium"
            python_with ensurepip >/dev/null || absent+=" venv"
            ;;
    esac

    missing=()
    local piece
    for piece in $wanted; do
        case " ${absent//$'\n'/ } " in *" $piece "*) missing+=("$piece") ;; esac
    done
}

# ---- what to say and do ----------------------------------------------------------------------------------------

column() { # column N NAME...: that column of the table for these pieces
    local n=$1 piece
    shift
    for piece in "$@"; do
        awk -F ' *[|] *' -v name="$piece" -v n="$n" '$1 == name { print $n }' <<<"$pieces"
    done
}

packages() { column "$@" | tr ' ' '\n' | awk '!seen[$0]++' | paste -sd ' '; }

finish() { # once all that apt installs is there
    local python
    case " $wanted " in *" venv "*) ;; *) exit 0 ;; esac
    if python_with tensorboard >/dev/null; then exit 0; fi
    echo "setup: installing TensorBoard with pip into build/tensorboard (a minute)" >&2
    python=$(python_with ensurepip)
    if ! { "$python" -m venv "$tensorboard" && "$tensorboard/bin/pip" install --quiet --disable-pip-version-check tensorboard; } >&2; then
        rm -rf "$tensorboard"
        echo "setup: pip could not install TensorBoard; its output is above. system_watching_tensorboard is skipped without it" >&2
        exit 2
    fi
    exit 0
}

# Pieces that cannot be had only matter when they are required.
drop_optional() {
    local piece required=()
    for piece in "${missing[@]}"; do
        case $optional in
            *" $piece "*) echo "setup: without $(column 2 "$piece"), which is then skipped" >&2 ;;
            *) required+=("$piece") ;;
        esac
    done
    missing=("${required[@]}")
    if ((${#missing[@]} == 0)); then finish; fi
}

refuse() { # refuse REASON
    {
        echo "setup: $1. Missing:"
        column 2 "${missing[@]}" | sed 's/^/    /'
        echo
        echo "Debian 12, Ubuntu 24.04 or newer:"
        echo "    apt-get install $(packages 3 "${missing[@]}")"
        echo "Fedora, RHEL (there with EPEL, CRB and gcc-toolset-13), then 'module load mpi/openmpi-x86_64':"
        echo "    dnf install $(packages 4 "${missing[@]}")"
        echo "Cluster with modules (names differ; 'module avail' lists them; HDF5 may be serial, or parallel and built with"
        echo "the same MPI):"
        echo "    module load gcc openmpi hdf5 boost cmake"
        echo "    What has no module, often oneDNN, fmt, nlohmann-json and GoogleTest, comes into your home"
        echo "    with 'spack install onednn fmt nlohmann-json libdeflate zstd hwloc pcre2 utf8proc googletest' and 'spack load' of the same,"
        echo "    or from source with 'cmake --install ... --prefix P' and 'export CMAKE_PREFIX_PATH=P'. GEMM=cblas does"
        echo "    without oneDNN."
        echo
        echo "If all of it is there and only this check does not see it: cmake -B build && cmake --build build"
    } >&2
    exit 2
}

find_missing
if ((${#missing[@]} == 0)); then finish; fi

as_root=()
if ! command -v apt-get >/dev/null; then
    drop_optional
    refuse "cannot install packages here"
elif [[ $(id -u) != 0 ]]; then
    # sudo that needs a password can be used only where somebody can type it
    if sudo -n true 2>/dev/null || { [[ -t 0 ]] && command -v sudo >/dev/null; }; then
        as_root=(sudo)
    else
        drop_optional
        refuse "cannot install packages without root or sudo"
    fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null
}

read -r -a names <<<"$(packages 3 "${missing[@]}")"
echo "setup: installing with apt (a minute or two): ${names[*]}" >&2
if ((${#as_root[@]})) && ! sudo -n true 2>/dev/null; then
    sudo -v || refuse "sudo was refused"
fi
apt update # where some source cannot be reached, the others may do

# An old release has the names, but not the versions: say so before anything is installed.
for requirement in compiler:g++:4:12 cmake:cmake:3.25; do
    IFS=: read -r piece package version <<<"$requirement"
    candidate=$(apt-cache policy "$package" 2>/dev/null | awk '/Candidate:/ { print $2 }')
    case " ${missing[*]} " in
        *" $piece "*)
            if [[ $candidate == [0-9]* ]] && dpkg --compare-versions "$candidate" lt "$version"; then
                refuse "the $package of this release is too old ($candidate), so nothing was installed"
            fi
            ;;
    esac
done

if ! apt install -y --no-install-recommends "${names[@]}"; then
    tail -n 40 "$log" >&2
    find_missing
    drop_optional
    refuse "apt-get failed; its output is above"
fi

find_missing
if ((${#missing[@]})); then
    drop_optional
    refuse "installed, but still not found or too old (CXX=${CXX:-}, ${compiler[*]}, $(command -v cmake))"
fi
finish
