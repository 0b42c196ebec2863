#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the headers of cuDNN's C++ frontend into FOLDER/include, where the build finds them: a part of the set-up, since the
# build itself downloads nothing. They come out of NVIDIA's Python package, which pip fetches. Does nothing without nvcc, or
# where they are already; without pip or network GPUs get our own attention kernels, and this says so.
#
#   scripts/fetch-cudnn-frontend.sh FOLDER          for example build/cudnn-frontend
#
# CUDA=OFF or CUDNN_FRONTEND_ROOT in the environment: nothing to do.
set -uo pipefail

version=1.32.0
folder=${1:?usage: scripts/fetch-cudnn-frontend.sh FOLDER}

has_nvcc() {
    local place
    for place in "${CUDACXX:-nvcc}" "${CUDA_PATH:-}/bin/nvcc" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
        if command -v "$place" >/dev/null; then return 0; fi
    done
    return 1
}

if [[ ${CUDA:-} == OFF || -n ${CUDNN_FRONTEND_ROOT:-} || -e $folder/include/cudnn_frontend.h ]]; then exit 0; fi
if [[ -e /usr/include/cudnn_frontend.h || -e /usr/local/include/cudnn_frontend.h ]]; then exit 0; fi
has_nvcc || exit 0

without() {
    echo "setup: without cuDNN's C++ frontend ($1), so attention on GPUs uses native kernels" >&2
    exit 0
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m pip --version >/dev/null 2>&1 || without "there is no pip"
# The same wheel whatever this Python is: only its headers are used.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --retries 1 --timeout 10 --dest "$scratch" "nvidia-cudnn-frontend==$version" >"$scratch/log" 2>&1 ||
    without "pip cannot get nvidia-cudnn-frontend $version"
python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel" || without "its package cannot be unpacked"
[[ -e $scratch/wheel/include/cudnn_frontend.h ]] || without "its package has no headers"
mkdir -p "$folder"
cp -R "$scratch/wheel/include" "$folder/"
for license in "$scratch"/wheel/*.dist-info/licenses/LICENSE*; do
    if [[ -e $license ]]; then cp "$license" "$folder/"; fi
done
echo "setup: cuDNN's C++ frontend $version is in $folder" >&2
