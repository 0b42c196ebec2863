// SPDX-License-Identifier: Apache-2.0
// The one place where threads are started: OpenMP regions over ranges and over items. Bodies must not throw.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "llampi/core/integers.hpp"

namespace llampi::device {

/// body(begin, end, part) for `threads` consecutive parts of [0, n), each part but the last a multiple of
/// `grain` long. Parts depend on `threads` alone, not on how many threads the system grants.
template <class Body>
void parallel_ranges(int threads, std::int64_t n, std::int64_t grain, const Body& body) {
  const std::int64_t grains = ceil_div(n, grain);
#pragma omp parallel num_threads(threads)
  for (int part = omp_get_thread_num(); part < threads; part += omp_get_num_threads()) {
    const std::int64_t begin = grains * part / threads * grain;
    const std::int64_t end = std::min(n, grains * (part + 1) / threads * grain);
    if (begin < end) body(begin, end, part);
  }
}

/// body(item, thread) for items 0 ... items - 1, whichever thread is free. For work whose result does not
/// depend on the thread. The body may call a matrix-product library, which then runs in its thread alone: no
/// pool inside a pool.
template <class Body>
void parallel_items(int threads, std::int64_t items, const Body& body) {
#pragma omp parallel num_threads(threads)
  {
    omp_set_num_threads(1);  // of this task: what it starts
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t item = 0; item < items; ++item) body(item, omp_get_thread_num());
  }
}

}  // namespace llampi::device
