// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_world.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <optional>

#include "comm/levels.hpp"
#include "comm/mpi/check.hpp"
#include "comm/mpi/combine_integers.hpp"
#include "comm/mpi/environment.hpp"
#include "comm/mpi/mpi_channel.hpp"
#include "comm/mpi/mpi_group.hpp"
#include "comm/mpi/topology.hpp"
#include "comm/mpi/tree_order.hpp"
#include "comm/near_network.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/placement.hpp"
#include "llampi/device/host_memory.hpp"

namespace llampi::comm {
namespace {

/// Between MPI_Init and MPI_Finalize.
class MpiSession {
 public:
  MpiSession() {
    int initialized = 0;
    check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
    require(initialized == 0, "MPI is initialised already: there is one World per process");
    set_mpi_defaults();
    const LateWakeups late;
    const Binding binding = bind_while_mpi_starts();
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads_), "MPI_Init_thread");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  /// MPI_Finalize waits for all ranks. While an exception unwinds they may never come.
  ~MpiSession() {
    if (std::uncaught_exceptions() > exceptions_ || gave_up) return;
    const LateWakeups late;
    MPI_Finalize();
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int threads() const { return threads_; }
  std::atomic<bool> gave_up =
      false;  ///< MPI or who uses it still holds what was given up: it cannot be finalised

 private:
  int exceptions_ = std::uncaught_exceptions();
  int threads_ = MPI_THREAD_SINGLE;
};

const char* thread_level(int level) {
  switch (level) {
    case MPI_THREAD_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    default:
      return "MPI_THREAD_SINGLE";
  }
}

/// "Open MPI v4.1.4, package: ..." -> "Open MPI 4.1.4".
std::string library_version() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  text.resize(static_cast<std::size_t>(length));
  text.resize(std::min(text.find_first_of(",\n"), text.size()));
  if (const auto v = text.find(" v"); v != std::string::npos) text.erase(v + 1, 1);
  return text;
}

int int_count(std::int64_t count) {
  require(count <= kMaxCount, "a collective of World is for small data");
  return static_cast<int>(count);
}

/// Between looks at messages, for a thread beside the one that computes.
constexpr std::chrono::microseconds kPause{200};

/// Integers that are ordered as the numbers are, and NaN above all. Zeros keep their signs.
std::int64_t order_key(double value) {
  if (std::isnan(value)) return std::numeric_limits<std::int64_t>::max();
  const auto bits = std::bit_cast<std::int64_t>(value);
  return bits < 0 ? std::numeric_limits<std::int64_t>::min() - bits - 1 : bits;
}

double value_of_key(std::int64_t key) {
  if (key == std::numeric_limits<std::int64_t>::max()) return std::numeric_limits<double>::quiet_NaN();
  return std::bit_cast<double>(key < 0 ? std::numeric_limits<std::int64_t>::min() - key - 1 : key);
}

class MpiWorld final : public World {
 public:
  MpiWorld() : session_(std::make_shared<MpiSession>()) {
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    MPI_Comm copy = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
    communicator_ = Communicator(copy);
    node_ = node_of(communicator_);
    topology_ = find_topology(communicator_, node_);
  }
  /// For another thread.
  MpiWorld(std::shared_ptr<MpiSession> session, Communicator communicator, int rank, int size,
           Topology topology)
      : session_(std::move(session)),
        progress_(std::make_shared<Progress>(kPause)),
        communicator_(std::move(communicator)),
        rank_(rank),
        size_(size),
        topology_(std::move(topology)) {}
  /// For the same thread.
  MpiWorld(std::shared_ptr<MpiSession> session, Communicator communicator, std::shared_ptr<Progress> progress)
      : session_(std::move(session)), progress_(std::move(progress)), communicator_(std::move(communicator)) {
    check_mpi(MPI_Comm_rank(communicator_.get(), &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(communicator_.get(), &size_), "MPI_Comm_size");
    node_ = node_of(communicator_);
    topology_ = find_topology(communicator_, node_);
  }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld() override {
    if (progress_->gave_up()) session_->gave_up = true;
  }

  int size() const override { return size_; }
  int rank() const override { return rank_; }
  const Topology& topology() const override { return topology_; }
  std::string describe() const override {
    return fmt::format("{}, {}", library_version(), thread_level(session_->threads()));
  }
  std::unique_ptr<World> duplicate() override {
    if (session_->threads() != MPI_THREAD_MULTIPLE) return nullptr;
    return std::make_unique<MpiWorld>(session_, communicator_.duplicate(), rank_, size_, topology_);
  }
  std::unique_ptr<World> split(int color) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(communicator_.get(), color < 0 ? MPI_UNDEFINED : color, rank_, &part),
              "MPI_Comm_split");
    if (part == MPI_COMM_NULL) return nullptr;
    // With pauses: what ranks do together there takes long, and who waits leaves the core to who works.
    return std::make_unique<MpiWorld>(session_, Communicator(part),
                                      std::make_shared<Progress>(kPause, progress_->waits_flag()));
  }
  int communicator_number() const override { return MPI_Comm_c2f(communicator_.get()); }
  MPI_Comm communicator() const { return communicator_.get(); }

  std::unique_ptr<Group> group(const std::vector<int>& members,
                               const std::vector<device::Stream>& streams) override {
    return make_group(members, {.node_of_rank = topology_.node_of_rank, .streams = streams});
  }
  std::unique_ptr<Group> make_group(const std::vector<int>& members, const MpiGroupOptions& options) const;
  std::unique_ptr<Channel> channel() override {
    const bool is_refused = on_any_rank(*this, session_->threads() != MPI_THREAD_MULTIPLE);
    return is_refused ? nullptr : std::make_unique<MpiChannel>(communicator_.duplicate());
  }
  device::Memory allocate(std::int64_t bytes) override { return device::allocate_host_memory(bytes); }

  bool waits() const override { return progress_->waits(); }

  void barrier() override;
  void sum(std::span<double> values) override;
  void sum(std::span<std::int64_t> values) override { all_reduce(values, MPI_SUM); }
  void max(std::span<std::int64_t> values) override { all_reduce(values, MPI_MAX); }
  void max(std::span<double> values) override;
  std::string broadcast(const std::string& text, int root) override;
  std::vector<std::string> all_gather(const std::string& text) override {
    return gather_texts(communicator_, text, {});
  }
  std::vector<std::string> all_gather_on_node(const std::string& text) override {
    require(node_.get() != MPI_COMM_NULL, "a duplicate of a world knows no node");
    return gather_texts(node_, text, {});
  }
  std::vector<std::string> gather(const std::string& text, int root) override {
    return gather_texts(communicator_, text, root);
  }
  std::unique_ptr<Work> start_to_combine(std::span<std::int64_t> values, std::size_t sums) override {
    return combine_integers(progress_, communicator_.get(), values, sums);
  }
  void leave_mpi_open() override { session_->gave_up = true; }
  [[noreturn]] void abort(int status) override {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::_Exit(status);  // in case it returns
  }

 private:
  /// Also moves the collectives of groups on, so that a rank in here does not hold up one that waits for
  /// those.
  void finish(Requests& requests) const { progress_->wait(requests); }
  std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& text,
                                        std::optional<int> root) const;
  void all_reduce(std::span<std::int64_t> values, MPI_Op op) const;

  std::shared_ptr<MpiSession> session_;  // of this world and its duplicates; destroyed last
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  Communicator communicator_;
  Communicator node_;  ///< none in a duplicate
  int rank_ = 0;
  int size_ = 1;
  Topology topology_;
};

const MpiWorld& mpi_world(const World& world) {
  const auto* mpi = dynamic_cast<const MpiWorld*>(&world);
  require(mpi != nullptr, "the world does not run on MPI");
  return *mpi;
}

std::unique_ptr<Group> MpiWorld::make_group(const std::vector<int>& members,
                                            const MpiGroupOptions& options) const {
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  require(!sorted.empty() && sorted.front() >= 0 && sorted.back() < size_,
          "group with ranks that do not exist");
  require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "group with a rank twice");
  const auto self = std::find(members.begin(), members.end(), rank_);
  require(self != members.end(), "group without this rank");
  const int group_rank = static_cast<int>(self - members.begin());
  if (members.size() == 1)
    return std::make_unique<MpiGroup>(members, 0, nullptr, progress_, nullptr, options);

  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm handle = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(communicator_.get(), &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some), "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(communicator_.get(), some, 0, &handle), "MPI_Comm_create_group");
  check_mpi(MPI_Group_free(&some), "MPI_Group_free");
  check_mpi(MPI_Group_free(&all), "MPI_Group_free");
  const Communicator communicator(handle);
  return std::make_unique<MpiGroup>(members, group_rank, &communicator, progress_,
                                    two_levels(nodes_of_members(members, options.node_of_rank), group_rank),
                                    options);
}

void MpiWorld::barrier() {
  Requests requests;
  check_mpi(MPI_Ibarrier(communicator_.get(), requests.add()), "MPI_Ibarrier");
  finish(requests);
}

void MpiWorld::sum(std::span<double> values) {
  std::vector<double> all(values.size() * static_cast<std::size_t>(size_));
  const int count = int_count(static_cast<std::int64_t>(values.size()));
  Requests requests;
  check_mpi(MPI_Iallgather(values.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE,
                           communicator_.get(), requests.add()),
            "MPI_Iallgather");
  finish(requests);
  combine_in_tree_order(tensor(all.data(), size_, count), ReduceOp::sum, Accumulate::no,
                        tensor(values.data(), 1, count));
}

/// Integers have one sum and one maximum, in whatever order MPI combines them.
void MpiWorld::all_reduce(std::span<std::int64_t> values, MPI_Op op) const {
  Requests requests;
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, values.data(), int_count(static_cast<std::int64_t>(values.size())),
                           MPI_INT64_T, op, communicator_.get(), requests.add()),
            "MPI_Iallreduce");
  finish(requests);
}

void MpiWorld::max(std::span<double> values) {
  std::vector<std::int64_t> keys;
  for (const double value : values) keys.push_back(order_key(value));
  all_reduce(keys, MPI_MAX);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of_key(keys[i]);
}

std::string MpiWorld::broadcast(const std::string& text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  Requests of_length;
  check_mpi(MPI_Ibcast(&length, 1, MPI_INT64_T, root, communicator_.get(), of_length.add()), "MPI_Ibcast");
  finish(of_length);
  std::string result = rank_ == root ? text : std::string(static_cast<std::size_t>(length), '\0');
  Requests requests;
  check_mpi(MPI_Ibcast(result.data(), int_count(length), MPI_BYTE, root, communicator_.get(), requests.add()),
            "MPI_Ibcast");
  finish(requests);
  return result;
}

std::vector<std::string> MpiWorld::gather_texts(const Communicator& communicator, const std::string& text,
                                                std::optional<int> root) const {
  int ranks = 0;
  check_mpi(MPI_Comm_size(communicator.get(), &ranks), "MPI_Comm_size");
  const bool receives = !root || *root == rank_;
  const int own = int_count(static_cast<std::int64_t>(text.size()));
  std::vector<int> lengths(static_cast<std::size_t>(receives ? ranks : 0));
  Requests of_lengths;
  if (root) {
    check_mpi(MPI_Igather(&own, 1, MPI_INT, lengths.data(), 1, MPI_INT, *root, communicator.get(),
                          of_lengths.add()),
              "MPI_Igather");
  } else {
    check_mpi(
        MPI_Iallgather(&own, 1, MPI_INT, lengths.data(), 1, MPI_INT, communicator.get(), of_lengths.add()),
        "MPI_Iallgather");
  }
  finish(of_lengths);
  std::vector<int> offsets;
  std::int64_t end = 0;
  for (const int length : lengths) {
    offsets.push_back(int_count(end));
    end += length;
  }
  std::string all(static_cast<std::size_t>(end), '\0');
  Requests requests;
  if (root) {
    check_mpi(MPI_Igatherv(text.data(), own, MPI_BYTE, all.data(), lengths.data(), offsets.data(), MPI_BYTE,
                           *root, communicator.get(), requests.add()),
              "MPI_Igatherv");
  } else {
    check_mpi(MPI_Iallgatherv(text.data(), own, MPI_BYTE, all.data(), lengths.data(), offsets.data(),
                              MPI_BYTE, communicator.get(), requests.add()),
              "MPI_Iallgatherv");
  }
  finish(requests);
  std::vector<std::string> texts(lengths.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank] =
        all.substr(static_cast<std::size_t>(offsets[rank]), static_cast<std::size_t>(lengths[rank]));
  }
  return texts;
}

}  // namespace

std::unique_ptr<World> World::create() { return std::make_unique<MpiWorld>(); }

MPI_Comm mpi_communicator(const World& world) { return mpi_world(world).communicator(); }

std::unique_ptr<Group> make_mpi_group(World& world, const std::vector<int>& members,
                                      const MpiGroupOptions& options) {
  MpiGroupOptions given = options;
  if (given.node_of_rank.empty()) given.node_of_rank = world.topology().node_of_rank;
  return mpi_world(world).make_group(members, given);
}

}  // namespace llampi::comm
