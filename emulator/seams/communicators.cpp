// SPDX-License-Identifier: Apache-2.0
#include "emulator/seams/communicators.hpp"

#include <cuda_runtime.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "comm/nccl/library.hpp"
#include "emulator/capture.hpp"
#include "emulator/memory.hpp"
#include "emulator/seams/exchange.hpp"
#include "emulator/seams/ring_sums.hpp"
#include "emulator/streams.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

using comm::nccl::Collective;
using comm::nccl::LibraryCommunicator;
using comm::nccl::Membership;
using comm::nccl::Result;
using comm::nccl::UniqueId;

constexpr int kUsualDelay = 2;
constexpr std::uintptr_t kPage = std::uintptr_t{2} << 20;
constexpr Result kInProgress{Result::State::in_progress, ""};
constexpr Result kFailed{Result::State::failed, "an emulated error"};
constexpr Result kRankLost{Result::State::failed, "remote process exited or there was a network error"};

class EmulatedCommunicator;

struct State {
  int delay = kUsualDelay;
  Call failing = Call::none, stalling = Call::none;
  bool misaligned = false, useless_windows = false;
  bool chained = true;
  std::shared_ptr<Point> last;  ///< collective that was issued
  std::atomic<int> open = 0, destroyed = 0, aborted = 0, windows = 0, split = 0;
  int ids = 0, most_ctas = 0;
  std::vector<EmulatedCommunicator*> communicators;
  std::map<void*, void*> memory;  ///< what cudaMalloc gave for it
  std::map<int, std::int64_t> exchanged;
};

State& state() {
  static State state;
  return state;
}

/// Whether this call is the one that is to fail.
bool fails(Call call) {
  if (state().failing != call) return false;
  state().failing = Call::none;
  return true;
}

bool stalls(Call call) {
  if (call == Call::none || state().stalling != call) return false;
  state().stalling = Call::none;
  return true;
}

void check_buffer(const void* data, std::size_t bytes) {
  require(device_memory().contains(data), "a collective on memory that is no GPU's");
  device_memory().check(data, bytes, "a collective");
}

bool are_apart(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto *const first = static_cast<const std::byte*>(a), *const second =
                                                                  static_cast<const std::byte*>(b);
  return first + a_bytes <= second || second + b_bytes <= first;
}

/// Buffers are a GPU's, and apart, or `receive` lies in `send` (or the other way round) just where it may: at `place`, if any.
void check_buffers(const Collective& c, std::size_t send_bytes, std::size_t receive_bytes,
                   std::optional<std::ptrdiff_t> place) {
  check_buffer(c.send, send_bytes);
  check_buffer(c.receive, receive_bytes);
  const bool in_place =
      static_cast<const std::byte*>(c.receive) - static_cast<const std::byte*>(c.send) == place;
  require(in_place || are_apart(c.send, send_bytes, c.receive, receive_bytes),
          "a collective whose buffers overlap");
}

class EmulatedCommunicator final : public LibraryCommunicator {
 public:
  EmulatedCommunicator() {
    emulator::state().communicators.push_back(this);
    ++emulator::state().open;
  }
  EmulatedCommunicator(const EmulatedCommunicator&) = delete;
  EmulatedCommunicator& operator=(const EmulatedCommunicator&) = delete;
  ~EmulatedCommunicator() override {
    std::erase(emulator::state().communicators, this);
    --emulator::state().open;
  }

  Result connect(const Membership& membership) {
    link_->rank = membership.rank;
    link_->ranks = membership.ranks;
    emulator::state().most_ctas = membership.max_ctas;
    is_parent_ = membership.shares;
    if (is_parent_) family_ = std::make_shared<Family>();
    Id id{};
    std::memcpy(&id, &membership.id, sizeof id);
    return begin(Call::connect,
                 [id, link = link_] { link->mpi = emulator::connect(id, link->rank, link->ranks); });
  }

  /// NCCL has a handle of this one when the parent is no longer in progress.
  Result split_from(EmulatedCommunicator& parent, const Membership& membership) {
    link_->rank = membership.rank;
    link_->ranks = membership.ranks;
    emulator::state().most_ctas = membership.max_ctas;
    if (parent.family_ != nullptr) family_ = parent.family_;
    parent_ = &parent;
    return parent.begin(Call::split, [from = parent.link_, link = link_] {
      check_mpi(MPI_Comm_dup(from->mpi, &link->mpi));
      ++emulator::state().split;
    });
  }

  Result issue(const Collective& collective) override {
    require(parent_ == nullptr, "a collective of a communicator that is not there yet");
    switch (collective.kind) {
      case Collective::Kind::all_gather:
        return all_gather(collective);
      case Collective::Kind::reduce_scatter:
        return reduce_scatter(collective);
      case Collective::Kind::all_reduce:
        return all_reduce(collective);
      case Collective::Kind::exchange:
        return exchange_parts(collective);
    }
    return kFailed;
  }

  Result state() override {
    if (parent_ != nullptr) {
      const Result splitting = parent_->state();
      if (!splitting.is_done()) return splitting;
      parent_ = nullptr;
    }
    if (pending_ && error_.is_done()) {
      int connected = 0;
      check_mpi(MPI_Test(&connection_, &connected, MPI_STATUS_IGNORE));
      if (connected == 0) run_some();  // which other ranks may wait for before they come
      if (polls_ != 0 || connected == 0) {
        if (polls_ > 0) --polls_;
        return kInProgress;
      }
      std::exchange(pending_, nullptr)();
    }
    return error_;
  }

  Result open_window(void* data, std::size_t bytes) override {
    require(!windows_.contains(data), "a second window on the same memory");
    device_memory().check(static_cast<const std::byte*>(data), bytes, "a window");
    return begin(Call::none, [this, data, bytes] {
      unsigned long long own = bytes, largest = 0;
      check_mpi(MPI_Allreduce(&own, &largest, 1, MPI_UNSIGNED_LONG_LONG, MPI_MAX, link_->mpi));
      require(own == largest, "a window of another size than on another rank");
      windows_.insert(data);
      useless_windows_ = emulator::state().useless_windows;
      ++emulator::state().windows;
    });
  }
  bool has_window(void* data) const override { return windows_.contains(data) && !useless_windows_; }
  Result close_window(void* data) override {
    if (!windows_.contains(data)) return {};
    return begin(Call::none, [this, data] {
      check_mpi(MPI_Barrier(link_->mpi));
      windows_.erase(data);
      --emulator::state().windows;
    });
  }
  Result finalize() override {
    return begin(Call::none, [this] {
      run_all();
      check_mpi(MPI_Barrier(link_->mpi));
      finalized_ = true;
    });
  }
  Result destroy() override {
    require(finalized_, "a communicator is destroyed before it is finalized");
    require(windows_.empty(), "a communicator is destroyed before its windows are closed");
    require(link_.use_count() == 1, "a communicator is destroyed before a graph that has its collectives");
    require(family_ == nullptr || !is_parent_ || family_.use_count() == 1,
            "a communicator is destroyed before what was split from it");
    check_mpi(MPI_Comm_free(&link_->mpi));
    ++emulator::state().destroyed;
    return {};
  }
  /// From any thread, so without MPI.
  void abort() {
    link_->dead = true;
    ++emulator::state().aborted;
  }
  void lose_a_rank() {
    error_ = kRankLost;
    link_->dead = true;
  }

 private:
  /// Begins a call: `work` is done later.
  Result begin(Call call, std::function<void()> work) {
    if (pending_) return kFailed;  // "before the previous operation returned ncclSuccess"
    if (!error_.is_done()) return error_;
    if (call != Call::none && fails(call)) work = [this] { error_ = kFailed; };
    pending_ = std::move(work);
    polls_ = stalls(call) ? -1 : emulator::state().delay;
    return kInProgress;
  }

  /// Puts it into the stream when the library comes to it: `finish(link, received)` with what all ranks have
  /// in `send`.
  template <class Finish>
  Result collective(const Collective& c, std::size_t bytes, Finish finish) {
    return collective(c, Sent{.data = c.send, .bytes = bytes}, finish);
  }
  template <class Finish>
  Result collective(const Collective& c, const Sent& sent, Finish finish) {
    if (std::exchange(connects_, false)) check_mpi(MPI_Ibarrier(link_->mpi, &connection_));
    return begin(Call::issue, [=, link = link_, family = family_] {
      // A graph has an order of its own.
      const auto follow = [&c](const std::shared_ptr<Point>& last) {
        if (last && last->capture.get() == capture_of(c.stream)) wait_for(c.stream, last);
      };
      if (emulator::state().chained) follow(emulator::state().last);
      if (family) follow(family->last);
      exchange(link, sent, c.stream, [=](Received& received) { finish(*link, received); });
      emulator::state().last = mark(c.stream);
      if (family) family->last = emulator::state().last;
    });
  }

  std::size_t bytes_of(const Collective& c) const {
    return static_cast<std::size_t>(c.elements * size_of(c.dtype));
  }

  Result all_gather(const Collective& c) {
    const std::size_t bytes = bytes_of(c);
    check_buffers(c, bytes, bytes * static_cast<std::size_t>(link_->ranks),
                  -link_->rank * static_cast<std::ptrdiff_t>(bytes));
    return collective(
        c, bytes, [=](const Link&, const Received& all) { std::memcpy(c.receive, all.data(), all.size()); });
  }
  Result reduce_scatter(const Collective& c) {
    const std::size_t all_bytes = bytes_of(c) * static_cast<std::size_t>(link_->ranks);
    const auto place = link_->rank * static_cast<std::ptrdiff_t>(bytes_of(c));
    check_buffers(c, all_bytes, bytes_of(c), place);
    return collective(c, all_bytes, [=](const Link& link, const Received& all) {
      // NCCL uses the rest of an operand in place as it likes.
      if (static_cast<const std::byte*>(c.send) + place == c.receive)
        std::memset(const_cast<void*>(c.send), 0xEE, all_bytes);
      const auto ranks = static_cast<std::size_t>(link.ranks), rank = static_cast<std::size_t>(link.rank);
      const auto count = static_cast<std::size_t>(c.elements);
      combine_round_the_ring({c.dtype, c.op, all.data(), count * ranks, link.ranks}, link.rank, rank * count,
                             count, static_cast<std::byte*>(c.receive));
    });
  }
  Result all_reduce(const Collective& c) {
    check_buffers(c, bytes_of(c), bytes_of(c), 0);
    return collective(c, bytes_of(c), [=](const Link& link, const Received& all) {
      const auto ranks = static_cast<std::size_t>(link.ranks);
      const auto count = static_cast<std::size_t>(c.elements);
      const auto size = static_cast<std::size_t>(size_of(c.dtype));
      for (std::size_t owner = 0; owner < ranks; ++owner) {
        const std::size_t begin = count * owner / ranks, end = count * (owner + 1) / ranks;
        combine_round_the_ring({c.dtype, c.op, all.data(), count, link.ranks}, static_cast<int>(owner), begin,
                               end - begin, static_cast<std::byte*>(c.receive) + begin * size);
      }
    });
  }

  Result exchange_parts(const Collective& c) {
    const std::size_t bytes = bytes_of(c);
    Sent sent{.bytes = bytes,
              .in_parts = true,
              .arriving = std::vector<int>(static_cast<std::size_t>(link_->ranks))};
    for (const auto& transfer : c.transfers) {
      require(transfer.peer != link_->rank, "an exchange with the rank itself");
      if (transfer.send != nullptr) {
        check_buffer(transfer.send, bytes);
        sent.parts.push_back({transfer.send, transfer.peer});
        emulator::state().exchanged[transfer.peer] += static_cast<std::int64_t>(bytes);
      }
      if (transfer.receive == nullptr) continue;
      ++sent.arriving.at(static_cast<std::size_t>(transfer.peer));
      check_buffer(transfer.receive, bytes);
      for (const auto& other : c.transfers) {
        require(other.send == nullptr || are_apart(transfer.receive, bytes, other.send, bytes),
                "a collective whose buffers overlap");
        require(&transfer == &other || other.receive == nullptr ||
                    are_apart(transfer.receive, bytes, other.receive, bytes),
                "what arrives overlaps");
      }
    }
    // Of each rank in its order, as they come: from one rank after another.
    std::vector<void*> arrives;
    for (int rank = 0; rank < link_->ranks; ++rank) {
      for (const auto& transfer : c.transfers) {
        if (transfer.peer == rank && transfer.receive != nullptr) arrives.push_back(transfer.receive);
      }
    }
    return collective(c, sent, [=](const Link&, const Received& all) {
      for (std::size_t i = 0; i < arrives.size(); ++i) std::memcpy(arrives[i], all.data() + i * bytes, bytes);
    });
  }

  /// That share their resources: their collectives run one after another.
  struct Family {
    std::shared_ptr<Point> last;
  };

  std::shared_ptr<Link> link_ = std::make_shared<Link>();
  std::shared_ptr<Family> family_;
  bool is_parent_ = false;
  EmulatedCommunicator* parent_ = nullptr;  ///< from which it is being split
  std::function<void()> pending_;           ///< what the last call has still to do
  int polls_ = 0;                           ///< until it does it; -1: never
  Result error_;
  bool finalized_ = false;
  std::set<const void*> windows_;
  bool useless_windows_ = false;
  bool connects_ = true;                       ///< in its next collective, the first
  MPI_Request connection_ = MPI_REQUEST_NULL;  ///< complete when all ranks have come there
};

class EmulatedLibrary final : public comm::nccl::Library {
 public:
  std::string version() const override { return "emulated NCCL 2.27"; }  // the oldest that is accepted

  bool is_supported() const override { return true; }
  bool has_copy_engines() const override { return false; }

  Result make_id(UniqueId& id) override {
    Id content{.root = 0, .serial = state().ids++};
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &content.root));
    static_assert(sizeof content <= sizeof id);
    std::memcpy(id.words.data(), &content, sizeof content);
    return {};
  }
  Result connect(const Membership& membership, std::unique_ptr<LibraryCommunicator>& made) override {
    auto communicator = std::make_unique<EmulatedCommunicator>();
    const Result result = communicator->connect(membership);
    made = std::move(communicator);
    return result;
  }
  Result split(LibraryCommunicator& parent, const Membership& membership,
               std::unique_ptr<LibraryCommunicator>& made) override {
    auto communicator = std::make_unique<EmulatedCommunicator>();
    const Result result = communicator->split_from(static_cast<EmulatedCommunicator&>(parent), membership);
    made = std::move(communicator);
    return result;
  }
  void abort(std::vector<std::unique_ptr<LibraryCommunicator>> communicators) override {
    for (const auto& communicator : communicators) static_cast<EmulatedCommunicator&>(*communicator).abort();
  }
  std::string last_error(const LibraryCommunicator*) override { return "emulated words"; }

  void* allocate(std::size_t bytes) override {
    if (fails(Call::allocate)) return nullptr;
    void* base = nullptr;
    if (cudaMalloc(&base, bytes + kPage) != cudaSuccess) return nullptr;
    const auto address = (reinterpret_cast<std::uintptr_t>(base) + kPage - 1) / kPage * kPage;
    void* const data =
        state().misaligned ? static_cast<std::byte*>(base) + 256 : reinterpret_cast<void*>(address);
    state().memory[data] = base;
    return data;
  }
  void free(void* data) override {
    const auto block = state().memory.find(data);
    require(block != state().memory.end(), "memory that was not allocated for communication");
    cudaFree(block->second);
    state().memory.erase(block);
  }
};

}  // namespace

CommunicatorCounts communicator_counts() {
  return {state().open,    state().destroyed, state().aborted, static_cast<int>(state().memory.size()),
          state().windows, state().most_ctas, state().split};
}
std::map<int, std::int64_t> take_exchanged_bytes() { return std::exchange(state().exchanged, {}); }
void set_delay(int polls) { state().delay = polls; }
void fail_next(Call call) { state().failing = call; }
void stall_next(Call call) { state().stalling = call; }
void lose_a_rank() {
  for (EmulatedCommunicator* communicator : state().communicators) communicator->lose_a_rank();
}
void chain_collectives(bool wanted) { state().chained = wanted; }
void misalign_memory(bool wanted) { state().misaligned = wanted; }
void have_no_use_for_windows(bool wanted) { state().useless_windows = wanted; }
void reset_communicators() {
  state().delay = kUsualDelay;
  state().failing = state().stalling = Call::none;
  state().misaligned = state().useless_windows = false;
  state().chained = true;
}

}  // namespace llampi::emulator

namespace llampi::comm::nccl {

Library& library() {
  static emulator::EmulatedLibrary emulated;
  return emulated;
}

}  // namespace llampi::comm::nccl
