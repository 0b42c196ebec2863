#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_bundle_test.sh SOURCE: relative folders that scripts/make-bundle.sh is given are those of the folder that it is called in. Stand-ins
# for its programs; the one for cmake writes down what it is called with, and ends the script.
set -euo pipefail
source_dir=$1
folder=$(realpath "$(mktemp -d)")
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/my builds/build"
printf '%s\n' "CMAKE_PROJECT_VERSION:STATIC=1.2.3" "MPIEXEC_EXECUTABLE:FILEPATH=$folder/bin/mpirun" >"$folder/my builds/build/CMakeCache.txt"
printf '#!/bin/sh\nprintf "%%s|" "$@" >"%s"\nexit 3\n' "$folder/called" >"$folder/bin/cmake"
printf '#!/bin/sh\necho "Open MPI v4.1.4"\n' >"$folder/bin/ompi_info"
printf '#!/bin/sh\n' >"$folder/bin/patchelf"
chmod +x "$folder"/bin/*
cd "$folder/my builds"

expect() { # BUILD FOLDER, the arguments of the script...
    local status=0 expected
    expected="--install|$1|--component|bundle|--prefix|$2/llampi-1.2.3-$(uname -m)|"
    shift 2
    rm -f "$folder/called"
    PATH=$folder/bin:$PATH "$source_dir/scripts/make-bundle.sh" "$@" || status=$?
    if [[ $status != 3 || $(<"$folder/called") != "$expected" ]]; then
        printf '%s, status %s:\nexpected %s\nfound    %s\n' "$*" "$status" "$expected" "$(<"$folder/called")" >&2
        exit 1
    fi
}
expect "$PWD/build" "$PWD/build/bundle" build
expect "$PWD/build" "$folder/not there/yet" ./build "../not there/yet"
expect "$PWD/build" "$folder/absolute" "$PWD/build" "$folder/absolute"
