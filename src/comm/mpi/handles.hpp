// SPDX-License-Identifier: Apache-2.0
// Owners of MPI's handles. Move-only.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

namespace llampi::comm {

/// A communicator that returns errors instead of ending the job.
class Communicator {
 public:
  Communicator() = default;
  /// Takes over `handle`.
  explicit Communicator(MPI_Comm handle);
  /// Frees it, unless an exception unwinds: freeing may wait for ranks that do not come any more.
  ~Communicator();
  Communicator(Communicator&& other) noexcept : handle_(std::exchange(other.handle_, MPI_COMM_NULL)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// A communicator of the same ranks whose messages do not meet this one's. Collective.
  Communicator duplicate() const;
  MPI_Comm get() const { return handle_; }
  /// Gives up the handle without freeing it.
  MPI_Comm release() { return std::exchange(handle_, MPI_COMM_NULL); }

 private:
  MPI_Comm handle_ = MPI_COMM_NULL;
};

/// MPI counts with int; longer messages are one element of a type made for them.
inline constexpr std::int64_t kMaxCount = std::numeric_limits<int>::max();

/// So many bytes as the arguments (count, type) of a call.
class ByteBlock {
 public:
  /// @param max_count largest count to be passed to MPI; less than kMaxCount only in tests
  ByteBlock(std::int64_t bytes, std::int64_t max_count);
  ~ByteBlock();
  ByteBlock(ByteBlock&& other) noexcept
      : count_(other.count_), type_(other.type_), owned_(std::exchange(other.owned_, false)) {}
  ByteBlock& operator=(ByteBlock&&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
  bool owned_ = false;
};

/// Blocks of equal length as one element of a type made for them.
class ScatteredBlocks {
 public:
  /// @param positions of the blocks, in blocks from where the message begins
  ScatteredBlocks(const ByteBlock& block, std::int64_t block_bytes, const std::vector<int>& positions);
  ~ScatteredBlocks();
  ScatteredBlocks(ScatteredBlocks&& other) noexcept : type_(std::exchange(other.type_, MPI_DATATYPE_NULL)) {}
  ScatteredBlocks& operator=(ScatteredBlocks&&) = delete;

  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// Requests that are waited for together, and the types that they use.
class Requests {
 public:
  Requests() = default;
  Requests(Requests&&) = default;
  Requests& operator=(Requests&&) = default;

  /// Where a non-blocking call puts its request.
  MPI_Request* add() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  /// Keeps a type until the requests are done.
  const ByteBlock& keep(ByteBlock block) { return blocks_.emplace_back(std::move(block)); }
  const ScatteredBlocks& keep(ScatteredBlocks blocks) { return scattered_.emplace_back(std::move(blocks)); }
  /// True when all are done; also moves MPI's other messages.
  bool test();

 private:
  std::vector<MPI_Request> requests_;
  std::deque<ByteBlock> blocks_;  // a deque: what keep() returned stays where it is
  std::deque<ScatteredBlocks> scattered_;
};

}  // namespace llampi::comm
