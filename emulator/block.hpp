// SPDX-License-Identifier: Apache-2.0
// The threads of one block as fibers of one host thread. A fiber runs until it meets others: at a barrier of
// the block or at an operation of its warp. Blocks run one after another, so only one block exists at a time.
//
// Found and thrown as Error: threads that wait for others that returned or wait elsewhere; lanes of a warp,
// or threads of a block, that meet at different places of the source.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <type_traits>

#include "emulator/control.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/source_location.hpp"

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace llampi::emulator {

/// Of the block that runs, counted along x, then y, then z; -1 outside of kernels.
extern int current_thread;

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;
inline constexpr std::size_t kLaneBytes = 256;  ///< the most that a lane can show to its warp at once

/// Runs `body` in every thread of every block. The shape is allowed (see launch()).
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

/// True in a thread of a kernel.
inline bool in_kernel() { return current_thread >= 0; }

/// In the handler of a fault: whether it was a kernel's first write to a page of `__shared__` variables. True: the page is
/// writable now, and the write is repeated.
bool allow_write_to_shared(const void* address);

/// The block's dynamic shared memory; NaN whatever it is read as when the block starts. Aligned to 128 bytes
/// and not more; what lies behind its end cannot be read or is found to be written.
std::byte* dynamic_shared_memory();

/// Whether it is in the memory that the block shares.
bool is_shared(const void* address);

/// __syncthreads(). @throws Error outside of kernels, as the following do
void meet_block(llampi::SourceLocation where);

/// __syncthreads_count()
int count_in_block(bool predicate, llampi::SourceLocation where);

/// __syncwarp(): all lanes of the warp come here.
void meet_warp(llampi::SourceLocation where);

/// All lanes of the warp come here, each with so many bytes. Returns those of all lanes, which stay until the lane's next
/// operation of the warp.
const std::byte* show_to_warp(const void* value, std::size_t bytes, llampi::SourceLocation where);

/// Index of the calling thread in its warp.
inline int lane() {
  require(in_kernel(), "lane() outside of a kernel");
  return current_thread % kWarp;
}

/// The values of the 32 lanes.
template <class T>
class Lanes {
 public:
  explicit Lanes(const std::byte* values) : values_(values) {}
  T operator[](int lane) const {
    T value;
    std::memcpy(static_cast<void*>(&value), values_ + static_cast<std::size_t>(lane) * sizeof(T), sizeof(T));
    return value;
  }

 private:
  const std::byte* values_;
};

/// Every lane shows `value` to all lanes: what a tensor-core instruction or a shuffle of several registers is
/// made of. The values stay until this lane's next operation of the warp.
template <class T>
Lanes<T> show_lanes(const T& value, llampi::SourceLocation where = llampi::SourceLocation::current()) {
  static_assert(sizeof(T) <= kLaneBytes);
  return Lanes<T>(show_to_warp(&value, sizeof(T), where));
}

}  // namespace llampi::emulator
