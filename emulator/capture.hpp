// SPDX-License-Identifier: Apache-2.0
// Work that streams record instead of doing it, and the graphs that come of it.
//
// The rules are those of the CUDA runtime's reference (stream management, graph management) for
// cudaStreamCaptureModeThreadLocal; whoever breaks one gets the error there, and the capture is invalid.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/streams.hpp"

namespace llampi::emulator {

/// From cudaStreamBeginCapture to cudaStreamEndCapture.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  using Recorded = std::vector<std::pair<CUstream_st*, Task>>;  ///< in the order in which it was enqueued

  static cudaError_t begin(CUstream_st& origin);
  /// Ends it in all its streams, whatever it returns.
  static cudaError_t end(CUstream_st& origin, Recorded& recorded);
  static cudaError_t wait(CUstream_st& stream, const std::shared_ptr<Point>& point);
  /// Between the two in this program? Then the call that asks is not allowed: the capture is invalid, and
  /// this is the error.
  static cudaError_t forbid();

  explicit Capture(CUstream_st& origin);
  /// @throws Error if the capture is invalid
  void record(CUstream_st& stream, Task task);
  std::shared_ptr<Point> mark(CUstream_st& stream);
  bool is_open() const { return open_; }
  /// Of all captures, from 1.
  int number() const { return number_; }

 private:
  /// Of each stream, how many of its tasks are known to be done.
  using Known = std::map<const CUstream_st*, std::size_t>;

  cudaError_t invalidate(cudaError_t error);
  void join(CUstream_st& stream);

  CUstream_st& origin_;
  int number_;
  bool open_ = true, valid_ = true;
  std::vector<CUstream_st*> streams_;
  Recorded recorded_;
  std::map<const CUstream_st*, Known> known_;  ///< to the next task of a stream
  std::map<const Point*, std::pair<Known, std::shared_ptr<Point>>>
      points_;  ///< kept, so that none has the place of another
};

/// Null: what is enqueued on the stream is done.
inline const Capture* capture_of(cudaStream_t stream) {
  return stream == nullptr ? nullptr : stream->capture.get();
}

}  // namespace llampi::emulator
