#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# container_test.sh SOURCE LLAMPI: what of the container definitions can be checked without building an image. Both begin from the
# same images and run the same two scripts, which name no package that apt does not have; and runtime-packages.sh finds those of the
# program, each of which is installed here. 77 where there is no dpkg.
set -euo pipefail
source_dir=$1 llampi=$2
cd "$source_dir/packaging/container"
fail() {
    echo "FAILED: $1" >&2
    exit 1
}

images() { grep -oE "nvidia/cuda:[a-z0-9.-]+" "$1" | sort; }
[[ -n $(images llampi.def) && $(images llampi.def) == "$(images Containerfile)" ]] || fail "llampi.def and Containerfile begin from other images"
runs() { grep -oE "bash /.*" "$1"; }
[[ $(runs llampi.def) == "$(runs Containerfile)" && $(runs llampi.def | wc -l) == 2 ]] || fail "llampi.def and Containerfile run other scripts"
for script in $(runs llampi.def | grep -oE "[a-z]+\.sh"); do [[ -x $script ]] || fail "there is no $script"; done
grep -q "make install" build.sh || fail "build.sh installs packages otherwise than scripts/setup.sh does"

command -v dpkg-query >/dev/null || { echo "there is no dpkg" && exit 77; }
listed=$(./runtime-packages.sh "$llampi")
always='^(openmpi-bin|libibverbs1|ibverbs-providers)$' # in the list whatever is here
mapfile -t packages < <(grep -vE "$always" <<<"$listed")
[[ $(dpkg-query -W -f '${db:Status-Status}\n' "${packages[@]}" | sort -u) == installed ]] || fail "not all of these are packages: ${packages[*]}"
for part in libhwloc libopenmpi libhdf5 libboost-program-options libpcre2 libc6; do
    grep -q "^$part" <<<"$listed" || fail "the list has no $part: $listed"
done
if ./runtime-packages.sh "$0" >/dev/null 2>&1; then fail "a file that is no program has a list"; fi
if command -v apt-cache >/dev/null && [[ -n $(apt-cache policy libc6 2>/dev/null) ]]; then
    read -r -a named <<<"$(sed -n 's/.*--no-install-recommends //p' build.sh) openmpi-bin libibverbs1 ibverbs-providers"
    known=$(apt-cache policy "${named[@]}" | grep -c '^[a-z]')
    ((known == ${#named[@]})) || fail "apt does not have all of ${named[*]}"
fi
