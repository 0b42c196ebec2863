#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# env_test.sh SOURCE: what scripts/bundle/env.sh does with the settings of a site file for fabrics that the bundle's Open MPI lacks.
set -euo pipefail
source_dir=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/scripts"
cp "$source_dir/scripts/bundle/env.sh" "$folder/"
cp "$source_dir/scripts/bundle/cuda-libraries.sh" "$folder/scripts/"

# expect PML MTL MESSAGES SETTING...: after the site file's settings and env.sh.
expect() {
    local found expected="$1 $2 $3"
    shift 3
    # shellcheck disable=SC2016 # for the other shell
    found=$(env -i PATH="$PATH" HOME="$folder" "$@" bash -euc 'source "$0/env.sh"; echo "${OMPI_MCA_pml-none} ${OMPI_MCA_mtl-none}"' "$folder" 2>"$folder/messages")
    found+=" $(grep -c '^env.sh: .*is unset.*bundle.md' "$folder/messages" || true)"
    if [[ $found != "$expected" || $(wc -l <"$folder/messages") != "${expected##* }" ]]; then
        printf '%s:\nexpected %s\nfound    %s\n' "$*" "$expected" "$found" >&2
        cat "$folder/messages" >&2
        exit 1
    fi
}
# shellcheck source=/dev/null
site() { (source "$source_dir/jobscripts/sites/$1.env" && env | grep ^OMPI_MCA_); }
mapfile -t infiniband < <(site infiniband)
mapfile -t slingshot < <(site slingshot)
mapfile -t ethernet < <(site ethernet)

expect none none 1 "${infiniband[@]}"
expect none none 1 "${slingshot[@]}"
expect ob1 none 0 "${ethernet[@]}"
expect none none 0 PATH="$PATH"
expect none none 1 OMPI_MCA_pml=ucx,ob1 OMPI_MCA_mtl=ofi
# One of the ranks prints it.
for rank in OMPI_COMM_WORLD_RANK PMIX_RANK SLURM_PROCID; do
    expect none none 1 "${infiniband[@]}" $rank=0
    expect none none 0 "${infiniband[@]}" $rank=1
done
