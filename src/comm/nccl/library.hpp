// SPDX-License-Identifier: Apache-2.0
// The library that moves data between GPUs, as this folder asks for it: NCCL (library.cpp), or between
// emulated GPUs messages over MPI (emulator/seams/communicators.cpp). Non-blocking: a call may return before
// it is done, and state() says when it is.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::comm::nccl {

/// How a call went, or goes.
struct Result {
  enum class State : std::uint8_t { done, in_progress, failed };
  State state = State::done;
  const char* words = "";  ///< the library's, for a failure

  bool is_done() const { return state == State::done; }
  bool is_in_progress() const { return state == State::in_progress; }
  bool has_failed() const { return state == State::failed; }
};

/// What the ranks of a communicator have in common.
struct UniqueId {
  std::array<std::int32_t, 32> words{};
};

struct Membership {
  UniqueId id;
  int ranks = 1, rank = 0;
  /// What the library calls the communicator in its log and to profilers; as long as it exists.
  const char* label = "";
  int max_ctas = 0;           ///< 0: the library decides
  bool shares = false;        ///< its resources with those that are split from it
  bool copy_engines = false;  ///< no multiprocessors where that can be had
};

/// To or from another rank, or both.
struct Transfer {
  int peer = 0;                ///< of the communicator
  const void* send = nullptr;  ///< null: nothing is sent
  void* receive =
      nullptr;  ///< where nothing is that any transfer of the exchange sends; null: nothing is received
};

/// Operands of a collective, in memory of this rank's GPU. `send` and `receive` are apart, or one lies in
/// the other just where this rank's part belongs.
struct Collective {
  enum class Kind : std::uint8_t {
    all_gather,
    reduce_scatter,
    all_reduce,
    exchange,  ///< `transfers`, and neither `send` nor `receive`. Those of two ranks with each other match in their order
  };
  Kind kind = Kind::all_gather;
  const void* send = nullptr;
  void* receive = nullptr;
  ReduceOp op = ReduceOp::sum;
  std::int64_t elements = 0;  ///< of a rank: of the shard, or of the values; of a transfer
  DType dtype = DType::float32;
  std::vector<Transfer> transfers = {};
  cudaStream_t stream = nullptr;
};

/// Destroying the object gives nothing back: destroy() does, or Library::abort().
class LibraryCommunicator {
 public:
  virtual ~LibraryCommunicator() = default;

  virtual Result issue(const Collective& collective) = 0;
  /// In progress while the library is at the last call; later what happened since.
  virtual Result state() = 0;
  /// Registers memory of the GPU that Library::allocate() gave, for collectives at equal places on all ranks. Collective, with as
  /// many bytes on each rank. In progress when it returns, unless it failed: state() says when the window is there.
  virtual Result open_window(void* data, std::size_t bytes) = 0;
  /// Once that is done: NCCL makes no window where it has no use for one.
  virtual bool has_window(void* data) const = 0;
  /// Before that memory is freed; nothing if there is no window on it. Collective.
  virtual Result close_window(void* data) = 0;
  /// Waits for what was issued. All ranks call it before destroy().
  virtual Result finalize() = 0;
  /// The last call.
  virtual Result destroy() = 0;
};

class Library {
 public:
  virtual ~Library() = default;

  virtual std::string version() const = 0;  ///< "NCCL 2.28.9"
  /// Whether it is 2.27 or newer. Older ones lack names and windows of communicators, and below 2.26 nothing orders the kernels of several
  /// communicators of a GPU (NCCL_LAUNCH_ORDER_IMPLICIT), which may then hang.
  virtual bool is_supported() const = 0;
  virtual bool has_copy_engines() const = 0;  ///< Membership::copy_engines can be had
  virtual Result make_id(UniqueId& id) = 0;
  /// Collective over the ranks of the id. `made` stays null if there is no communicator yet that could be
  /// aborted.
  virtual Result connect(const Membership& membership, std::unique_ptr<LibraryCommunicator>& made) = 0;
  /// Another communicator of all ranks of `parent`, whose resources it shares if that one's Membership::shares says so. Both are in
  /// progress until it is there: no call of either before that but state() and abort(). `membership` says its label and limits, and has
  /// no id. `made` is never null, and finalized and destroyed before `parent` is.
  virtual Result split(LibraryCommunicator& parent, const Membership& membership,
                       std::unique_ptr<LibraryCommunicator>& made) = 0;
  /// As one group: freeing the memory of one waits for the kernels of the others on this GPU. From any
  /// thread. What was split from others comes after them.
  virtual void abort(std::vector<std::unique_ptr<LibraryCommunicator>> communicators) = 0;
  /// The last words that were written about an error, if any. `of` may be null.
  virtual std::string last_error(const LibraryCommunicator* of) = 0;

  /// Memory of the GPU that can be registered. Null if there is none of this kind.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* data) = 0;
};

Library& library();

}  // namespace llampi::comm::nccl
