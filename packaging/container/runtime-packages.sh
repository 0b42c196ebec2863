#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# runtime-packages.sh PROGRAM...: the Debian packages, one a line, that these programs and libraries need to run: those that hold the
# libraries which the loader finds for them here, Open MPI's mpirun, and what NCCL opens where there is InfiniBand.
set -euo pipefail

mapfile -t libraries < <(ldd "$@" | awk '$2 == "=>" { print ($3 == "not" ? $1 : $3) }' | sort -u)
paths=()
for library in "${libraries[@]}"; do
    [[ $library == /* ]] || { echo "runtime-packages: $library is not found here" >&2 && exit 1; }
    paths+=("$(realpath -- "$library")")
done
((${#paths[@]})) || { echo "runtime-packages: $* is no program that needs libraries" >&2 && exit 1; }
# The database may know a file of /usr/lib below /lib.
owners=$(dpkg -S "${paths[@]}" "${paths[@]#/usr}" 2>/dev/null | grep -v '^diversion by') || true
for path in "${paths[@]}"; do
    grep -qFx -e "$path" -e "${path#/usr}" <<<"$(awk '{ print $NF }' <<<"$owners")" || { echo "runtime-packages: $path belongs to no package" >&2 && exit 1; }
done
{
    awk -F '[:,]' '{ print $1 }' <<<"$owners"
    printf '%s\n' openmpi-bin libibverbs1 ibverbs-providers
} | sort -u
