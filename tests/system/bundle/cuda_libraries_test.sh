#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda_libraries_test.sh SOURCE: the search of scripts/bundle/cuda-libraries.sh, with libraries of names that no machine has.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# shellcheck source=scripts/bundle/cuda-libraries.sh
source "$1/scripts/bundle/cuda-libraries.sh"
unset LD_LIBRARY_PATH VIRTUAL_ENV CONDA_PREFIX CUDA_HOME CUDA_PATH CUDA_ROOT PYTHONPATH
export HOME=$folder/home

library() { # file, the libraries it needs
    mkdir -p "$(dirname "$1")"
    cc -shared -o "$1" -Wl,-soname,"$(basename "$1")" -Wl,--no-as-needed -x c /dev/null -x none "${@:2}"
}
# As PyTorch's packages lie: one library in a folder of its own, which needs one that only this leads to.
layout() { # folder that holds nvidia/
    library "$1/nvidia/cu13/lib/libtest_rtc.so.13"
    library "$1/nvidia/cu13/lib/libtest_blas.so.13"
    library "$1/nvidia/dnn/lib/libtest_dnn.so.9" "$1/nvidia/cu13/lib/libtest_rtc.so.13"
    echo "$1/nvidia"
}
first=$(layout "$folder/first")
library "$folder/plugin.so" "$first/cu13/lib/libtest_blas.so.13" "$first/dnn/lib/libtest_dnn.so.9"

expect() { # what, expected, found
    if [[ $2 != "$3" ]]; then
        printf '%s:\nexpected %s\nfound    %s\n' "$1" "$2" "$3" >&2
        exit 1
    fi
}
find_them() { cuda_library_path "$folder/plugin.so"; }

expect "nowhere" "" "$(find_them)"
expect "where LD_LIBRARY_PATH leads" "" "$(LD_LIBRARY_PATH=$first/cu13/lib:$first/dnn/lib find_them)"
expect "Python's search path" "$first/cu13/lib:$first/dnn/lib" "$(PYTHONPATH=$folder/first find_them)"
expect "only what is missing" "$first/dnn/lib" "$(LD_LIBRARY_PATH=$first/cu13/lib PYTHONPATH=$folder/first find_them)"

venv=$(layout "$folder/a venv/lib/python3.12/site-packages")
expect "an environment, before Python's path" "$venv/cu13/lib:$venv/dnn/lib" \
    "$(VIRTUAL_ENV="$folder/a venv" PYTHONPATH=$folder/first find_them)"

user=$(layout "$folder/home/.local/lib/python3.12/site-packages")
expect "the user's packages" "$user/cu13/lib:$user/dnn/lib" "$(find_them)"

library "$folder/toolkit/lib64/libtest_blas.so.13"
library "$folder/toolkit/lib64/libtest_rtc.so.13"
expect "a toolkit, and what it has not from elsewhere" "$folder/toolkit/lib64:$user/dnn/lib" \
    "$(CUDA_HOME=$folder/toolkit find_them)"

(
    export LD_LIBRARY_PATH=/elsewhere
    CUDA_HOME=$folder/toolkit add_cuda_libraries "$folder/plugin.so"
    expect "added" "/elsewhere:$folder/toolkit/lib64:$user/dnn/lib" "$LD_LIBRARY_PATH"
    add_cuda_libraries "$folder/plugin.so"
    expect "nothing to add" "/elsewhere:$folder/toolkit/lib64:$user/dnn/lib" "$LD_LIBRARY_PATH"
    add_cuda_libraries "$folder/no plugin"
)
