#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh SOURCE PREFIX: the first stage of an image, in a Debian or Ubuntu with CUDA's headers, as root. Builds and installs llampi and,
# beside it, the list of the packages that the second stage needs. What the build needs scripts/setup.sh says, here as anywhere.
# CUDA=OFF in the environment: without GPUs.
set -euo pipefail
cd "$1"
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates git make python3-pip
git config --global --add safe.directory "$1"
make install PREFIX="$2" BUILD=/tmp/llampi-build CUDA="${CUDA:-ON}" CMAKE_FLAGS="-DLLAMPI_TESTS=OFF -DLLAMPI_BENCH=OFF"
mapfile -t programs < <(find "$2/bin/llampi" "$2/lib" -maxdepth 1 -type f \( -name llampi -o -name 'libllampi*.so' \))
packaging/container/runtime-packages.sh "${programs[@]}" >"$2/packages"
cp packaging/container/runtime.sh "$2/"
