// SPDX-License-Identifier: Apache-2.0
#include "emulator/seams/exchange.hpp"

#include <array>
#include <thread>
#include <utility>

#include "emulator/capture.hpp"
#include "emulator/streams.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

constexpr int kFirstTag = 4000;
constexpr int kProbes = 32;

/// A stream of its own, on which the GPU looks whether messages have come.
cudaStream_t network() {
  static const std::unique_ptr<CUstream_st> stream = [] {
    auto made = std::make_unique<CUstream_st>();
    add_stream(made.get());
    return made;
  }();
  return stream.get();
}

/// Whether what is enqueued is done at once, always.
bool is_eager() {
  for (int i = 0; i < kProbes; ++i) {
    const auto done = std::make_shared<bool>(false);
    enqueue(network(), [done] { *done = true; });
    if (!*done) return false;
  }
  return true;
}

struct Exchange {
  std::shared_ptr<Link> link;
  std::vector<std::byte> own;
  Received all;
  struct Blocks {
    std::vector<int> counts, begins;  ///< bytes of each rank
    void add(std::size_t bytes) {
      begins.push_back(begins.empty() ? 0 : begins.back() + counts.back());
      counts.push_back(static_cast<int>(bytes));
    }
  };
  Blocks leaving, arriving;   ///< where ranks get parts of their own
  int capture = 0;            ///< in which it was captured; 0: in none
  std::vector<int> captures;  ///< of all ranks
  std::array<MPI_Request, 2> requests = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  std::shared_ptr<Point> arrived = std::make_shared<Point>(network());
};

/// MPI goes on writing what nobody waits for any more.
void keep_for_ever(std::shared_ptr<Exchange> exchange) {
  static std::vector<std::shared_ptr<Exchange>> kept;
  kept.push_back(std::move(exchange));
}

void look(const std::shared_ptr<Exchange>& exchange) {
  int done = 0;
  if (exchange->link->dead) {
    keep_for_ever(exchange);
    done = 1;
  } else {
    check_mpi(MPI_Testall(2, exchange->requests.data(), &done, MPI_STATUSES_IGNORE));
  }
  if (done == 0) {
    std::this_thread::yield();  // to the rank that is waited for, where there are more ranks than cores
    return enqueue(network(), [exchange] { look(exchange); });
  }
  exchange->arrived->reach();
}

void start(const std::shared_ptr<Exchange>& exchange, const Sent& sent, int capture) {
  if (exchange->link->dead) {
    exchange->arrived->reach();
    return;
  }
  const auto ranks = static_cast<std::size_t>(exchange->link->ranks);
  const auto put = [&](const void* data) {
    const auto* const begin = static_cast<const std::byte*>(data);
    exchange->own.insert(exchange->own.end(), begin, begin + sent.bytes);
  };
  exchange->capture = capture;
  exchange->captures.resize(ranks);
  const MPI_Comm mpi = exchange->link->mpi;
  check_mpi(MPI_Iallgather(&exchange->capture, 1, MPI_INT, exchange->captures.data(), 1, MPI_INT, mpi,
                           exchange->requests.data()));
  if (!sent.in_parts) {
    put(sent.data);
    exchange->all.resize(sent.bytes * ranks);
    check_mpi(MPI_Iallgather(exchange->own.data(), static_cast<int>(sent.bytes), MPI_BYTE,
                             exchange->all.data(), static_cast<int>(sent.bytes), MPI_BYTE, mpi,
                             exchange->requests.data() + 1));
  } else {
    std::size_t arriving = 0;
    for (int rank = 0; rank < exchange->link->ranks; ++rank) {
      const std::size_t begin = exchange->own.size();
      for (const Sent::Part& part : sent.parts) {
        if (part.to == rank) put(part.data);
      }
      exchange->leaving.add(exchange->own.size() - begin);
      const std::size_t bytes =
          sent.bytes * static_cast<std::size_t>(sent.arriving.at(static_cast<std::size_t>(rank)));
      exchange->arriving.add(bytes);
      arriving += bytes;
    }
    exchange->all.resize(arriving);
    check_mpi(MPI_Ialltoallv(exchange->own.data(), exchange->leaving.counts.data(),
                             exchange->leaving.begins.data(), MPI_BYTE, exchange->all.data(),
                             exchange->arriving.counts.data(), exchange->arriving.begins.data(), MPI_BYTE,
                             mpi, exchange->requests.data() + 1));
  }
  if (is_eager()) check_mpi(MPI_Waitall(2, exchange->requests.data(), MPI_STATUSES_IGNORE));
  look(exchange);
}

void finish(Exchange& exchange, const std::function<void(Received&)>& with) {
  if (exchange.link->dead) return;
  for (const int capture : exchange.captures)
    require(capture == exchange.capture,
            "a collective is in a graph on some ranks and not, or in another, on others");
  with(exchange.all);
}

}  // namespace

void check_mpi(int code) { require(code == MPI_SUCCESS, "MPI between emulated GPUs"); }

int Link::number_of(const Capture& capture) {
  return numbers.try_emplace(capture.number(), static_cast<int>(numbers.size()) + 1).first->second;
}

MPI_Comm connect(const Id& id, int rank, int ranks) {
  int self = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &self));
  const int tag = kFirstTag + id.serial;
  std::vector<int> members(static_cast<std::size_t>(ranks));
  const int own[2] = {rank, self};
  if (self == id.root) {
    members[static_cast<std::size_t>(rank)] = self;
    for (int i = 1; i < ranks; ++i) {
      int other[2] = {};
      check_mpi(MPI_Recv(other, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
      members[static_cast<std::size_t>(other[0])] = other[1];
    }
    for (const int member : members) {
      if (member != self) check_mpi(MPI_Send(members.data(), ranks, MPI_INT, member, tag, MPI_COMM_WORLD));
    }
  } else {
    check_mpi(MPI_Send(own, 2, MPI_INT, id.root, tag, MPI_COMM_WORLD));
    check_mpi(MPI_Recv(members.data(), ranks, MPI_INT, id.root, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  }
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &all));
  check_mpi(MPI_Group_incl(all, ranks, members.data(), &some));
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, some, tag, &communicator));
  check_mpi(MPI_Group_free(&some));
  check_mpi(MPI_Group_free(&all));
  return communicator;
}

void exchange(const std::shared_ptr<Link>& link, const Sent& sent, cudaStream_t stream,
              std::function<void(Received&)> with) {
  // In a graph this is done again and again: each time it is an exchange of its own.
  const auto current = std::make_shared<std::shared_ptr<Exchange>>();
  const Capture* const capture = capture_of(stream);
  enqueue(stream, [=, number = capture ? link->number_of(*capture) : 0] {
    *current = std::make_shared<Exchange>();
    (*current)->link = link;
    start(*current, sent, number);
  });
  wait_for_what(stream, [current] { return (*current)->arrived; });
  enqueue(stream, [current, with = std::move(with)] {
    const auto exchange = std::exchange(*current, nullptr);
    finish(*exchange, with);
  });
}

}  // namespace llampi::emulator
