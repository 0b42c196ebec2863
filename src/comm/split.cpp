// SPDX-License-Identifier: Apache-2.0
#include "comm/split.hpp"

#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"

namespace llampi::comm {
namespace {

// Below this an all-reduce costs its number of messages, not its bytes: one exchange beats two.
constexpr std::int64_t kSmallBytes = 16 * 1024;

}  // namespace

AllReduceSplit split_all_reduce(std::int64_t elements, int ranks, DType dtype) {
  const bool small = elements * size_of(dtype) * ranks <= kSmallBytes;
  const std::int64_t slice = small ? 0 : elements / ranks;
  return {slice, slice * ranks, elements - slice * ranks};
}

std::int64_t reduce_scatter_workspace(Backend backend, std::int64_t whole_elements, int ranks, DType dtype) {
  return backend == Backend::nccl || ranks == 1 ? 0 : whole_elements * size_of(dtype);
}

std::int64_t all_reduce_workspace(Backend backend, std::int64_t elements, int ranks, DType dtype) {
  if (backend == Backend::nccl || ranks == 1) return 0;
  const AllReduceSplit split = split_all_reduce(elements, ranks, dtype);
  return (split.head + split.tail * ranks) * size_of(dtype);
}

}  // namespace llampi::comm
