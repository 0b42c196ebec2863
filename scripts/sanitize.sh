#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tests of threads, messages and checkpoints under sanitizers, and runs them: scripts/sanitize.sh [BUILD [JOBS]].
# By hand: it takes long. Stops at the first kind of sanitizer that finds something.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build} jobs=${2:-$(nproc)}
targets=(test_ranks_comm test_unit_comm test_unit_health test_unit_io test_unit_checkpoint test_ranks_train_background_save test_system_watchdog
         test_ranks_checkpoint_save_load test_ranks_checkpoint_checksums test_ranks_checkpoint_damage)
tests='^(ranks_comm_[1-4]|unit_(comm|health|io|checkpoint)|ranks_train_background_save_[12]|system_watchdog|ranks_checkpoint_(save_load|checksums)_[12]|ranks_checkpoint_damage_[13])$'
. scripts/mpi-env.sh

# MPI keeps memory until the end, so leaks are not looked for.
export ASAN_OPTIONS=detect_leaks=0
# What MPI and HDF5, which are not built with the thread sanitizer, do among themselves looks like races: their locks are not seen.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1
for sanitizer in thread address,undefined; do
  folder=$build/sanitize-${sanitizer%,*}
  cmake -S . -B "$folder" -DLLAMPI_SANITIZE=$sanitizer -DLLAMPI_CUDA=OFF -DLLAMPI_BENCH=OFF -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_CXX_FLAGS_DEBUG=-O1
  cmake --build "$folder" --parallel "$jobs" --target "${targets[@]}"
  # At fixed addresses: g++'s thread sanitizer does not know those that newer kernels choose.
  setarch "$(uname -m)" -R ctest --test-dir "$folder" -R "$tests" --timeout 1200 --output-on-failure
done
