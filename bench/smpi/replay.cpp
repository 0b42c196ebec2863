// SPDX-License-Identifier: Apache-2.0
// Collectives and whole steps of llampi on a network that SimGrid's SMPI simulates. bench/smpi.sh compiles and runs it.
//
//   replay step LIST.json ROUTE SCALE
//       one step, action by action, as `llampi plan --actions --json` lists it with the seconds of its computations
//   replay collectives RANKS_PER_NODE ROUTE SCALE BYTES...
//       all-gathers, reduce-scatters and all-reduces of these sizes over all ranks, nothing else under way
//
// Messages are sent by the program's own src/comm/mpi, payloads included. ROUTE is `two` (comm/levels) or `one`. Each stream
// of a rank is a process: a collective goes on while the rank computes, as on a GPU. A computation is simulated time;
// sums and copies within a rank take none. One byte here stands for SCALE bytes: the bandwidths of the platform are divided by it too.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#include "comm/levels.hpp"
#include "comm/mpi/mpi_group.hpp"
#include "llampi/comm/workspace.hpp"

namespace {

namespace comm = llampi::comm;
namespace s4u = simgrid::s4u;
using llampi::DType;
using llampi::Tensor;

/// Consecutive ranks of a communicator, as a group that the program would make of them.
struct SimulatedGroup {
  SimulatedGroup(MPI_Comm parent, int color, int ranks_per_node, int world_rank, bool two_levels) {
    MPI_Comm handle = MPI_COMM_NULL;
    MPI_Comm_split(parent, color, world_rank, &handle);
    communicator = std::make_unique<comm::Communicator>(handle);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(handle, &rank);
    MPI_Comm_size(handle, &ranks);
    std::vector<int> members(static_cast<std::size_t>(ranks)), nodes;
    MPI_Allgather(&world_rank, 1, MPI_INT, members.data(), 1, MPI_INT, handle);
    for (const int member : members) nodes.push_back(member / ranks_per_node);
    group = std::make_unique<comm::MpiGroup>(
        members, rank, communicator.get(), std::make_shared<comm::Progress>(),
        two_levels ? comm::two_levels(nodes, rank) : nullptr, comm::MpiGroupOptions());
  }
  std::unique_ptr<comm::Communicator> communicator;
  std::unique_ptr<comm::MpiGroup> group;
};

/// Issues collectives of so many bytes and waits for them.
class Caller {
 public:
  explicit Caller(double scale) : scale_(scale) {}

  void all_gather(comm::Group& group, double bytes) {
    const std::int64_t part = part_elements(group, bytes);
    float* const whole = room(whole_, part * group.size());
    const Tensor own{whole + group.rank() * part, DType::float32, 1, part};
    std::fill_n(whole + group.rank() * part, part, static_cast<float>(group.rank()));
    wait(group.all_gather(own, {whole, DType::float32, 1, part * group.size()}, kStream));
    for (int r = 0; r < group.size(); ++r) check(whole[r * part], static_cast<float>(r));
  }
  void reduce_scatter(comm::Group& group, double bytes) {
    const std::int64_t part = part_elements(group, bytes), all = part * group.size();
    float* const whole = room(whole_, all);
    float* const shard = room(result_, part);
    std::fill_n(whole, all, static_cast<float>(group.rank()));
    wait(group.reduce_scatter(
        {whole, DType::float32, 1, all}, {shard, DType::float32, 1, part}, llampi::Accumulate::no,
        workspace(comm::reduce_scatter_workspace(all, group.size(), DType::float32)), kStream));
    check(shard[part - 1], sum_of_ranks(group));
  }
  void all_reduce(comm::Group& group, double bytes) {
    const std::int64_t all = part_elements(group, bytes) * group.size();
    float* const values = room(whole_, all);
    std::fill_n(values, all, static_cast<float>(group.rank()));
    const Tensor tensor{values, DType::float32, 1, all};
    wait(group.all_reduce(tensor, tensor, comm::ReduceOp::sum, llampi::Accumulate::no,
                          workspace(comm::all_reduce_workspace(all, group.size(), DType::float32)), kStream));
    check(values[all - 1], sum_of_ranks(group));
  }

 private:
  static constexpr llampi::device::Stream kStream = llampi::device::Stream::compute;

  std::int64_t part_elements(const comm::Group& group, double bytes) const {
    return std::max<std::int64_t>(1, std::llround(bytes / scale_ / sizeof(float) / group.size()));
  }
  static float* room(std::vector<float>& memory, std::int64_t elements) {
    if (static_cast<std::int64_t>(memory.size()) < elements)
      memory.resize(static_cast<std::size_t>(elements));
    return memory.data();
  }
  Tensor workspace(std::int64_t bytes) {
    const auto elements = (bytes + 3) / 4;
    return {room(workspace_, elements), DType::float32, 1, elements};
  }
  static void wait(std::unique_ptr<comm::Work> work) { work->wait(kStream); }
  static float sum_of_ranks(const comm::Group& group) {
    return static_cast<float>(group.size() * (group.size() - 1) / 2);
  }
  static void check(float value, float expected) {
    if (value == expected) return;
    std::fprintf(stderr, "replay: a collective gave %g instead of %g\n", value, expected);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  double scale_;
  std::vector<float> whole_, result_, workspace_;
};

/// What the streams of a rank know of each other. The processes of a simulation share their memory.
struct RankState {
  std::vector<bool> done;
  s4u::MutexPtr mutex = s4u::Mutex::create();
  s4u::ConditionVariablePtr changed = s4u::ConditionVariable::create();
};

struct SimulatedAction {
  std::string op, ranks;
  int stream = 0;
  double seconds = 0, bytes = 0;
  std::vector<int> waits;
};

struct SimulatedStep {
  std::vector<std::string> streams;
  std::vector<SimulatedAction> actions;
  int ranks = 1, ranks_per_node = 1, shard_ranks = 1;
};

SimulatedStep read_step(const std::string& file) {
  const auto json = nlohmann::json::parse(std::ifstream(file));
  SimulatedStep step{.ranks = json.at("ranks"),
                     .ranks_per_node = json.at("ranks_per_node"),
                     .shard_ranks = json.at("shard_ranks")};
  for (const auto& a : json.at("actions")) {
    const std::string stream = a.at("stream");
    auto known = std::ranges::find(step.streams, stream);
    if (known == step.streams.end()) known = step.streams.insert(known, stream);
    SimulatedAction action{.op = a.at("op"),
                           .ranks = a.value("ranks", ""),
                           .stream = static_cast<int>(known - step.streams.begin()),
                           .seconds = 0,
                           .bytes = a.value("bytes", 0.0),
                           .waits = a.at("waits")};
    if (action.ranks.empty()) action.seconds = a.at("seconds");
    step.actions.push_back(std::move(action));
  }
  return step;
}

// Of all simulated processes, which run one at a time.
std::unique_ptr<const SimulatedStep> shared_step;
std::map<int, RankState> shared_states;

void perform(const SimulatedAction& action, Caller& caller, comm::Group& shards, comm::Group& replicas) {
  if (action.ranks.empty()) {
    if (action.seconds > 0) s4u::this_actor::sleep_for(action.seconds);
    return;
  }
  comm::Group& group = action.ranks == "shard_group" ? shards : replicas;
  if (group.size() == 1) return;
  if (action.op == "unshard" || action.op == "all_gather") {
    caller.all_gather(group, action.bytes);
  } else if (action.op == "reduce" || action.op == "reduce_scatter") {
    caller.reduce_scatter(group, action.bytes);
  } else {
    caller.all_reduce(group, action.bytes);
  }
}

void replay_step(const std::string& file, bool two_levels, double scale) {
  if (!shared_step) shared_step = std::make_unique<const SimulatedStep>(read_step(file));
  const SimulatedStep& step = *shared_step;
  const int streams = static_cast<int>(step.streams.size());
  int process = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  const int rank = process / streams, stream = process % streams;
  MPI_Comm ranks = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, stream, rank, &ranks);
  SimulatedGroup shards(ranks, rank / step.shard_ranks, step.ranks_per_node, rank, two_levels);
  SimulatedGroup replicas(ranks, rank % step.shard_ranks, step.ranks_per_node, rank, two_levels);
  Caller caller(scale);

  RankState& state = shared_states[rank];
  state.done.resize(step.actions.size());
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (std::size_t i = 0; i < step.actions.size(); ++i) {
    const SimulatedAction& action = step.actions[i];
    if (action.stream != stream) continue;
    {
      std::unique_lock lock(*state.mutex);
      state.changed->wait(lock, [&] {
        return std::ranges::all_of(action.waits,
                                   [&](int other) { return state.done[static_cast<std::size_t>(other)]; });
      });
    }
    perform(action, caller, *shards.group, *replicas.group);
    const std::unique_lock lock(*state.mutex);
    state.done[i] = true;
    state.changed->notify_all();
  }
  double seconds = MPI_Wtime() - begin, longest = 0;
  MPI_Reduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (process == 0) std::printf("%.6f\n", longest);
}

void time_collectives(int ranks_per_node, bool two_levels, double scale, const std::vector<double>& sizes) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  SimulatedGroup all(MPI_COMM_WORLD, 0, ranks_per_node, rank, two_levels);
  Caller caller(scale);
  const std::pair<const char*, void (Caller::*)(comm::Group&, double)> collectives[] = {
      {"all_gather", &Caller::all_gather},
      {"reduce_scatter", &Caller::reduce_scatter},
      {"all_reduce", &Caller::all_reduce}};
  for (const auto& [name, call] : collectives) {
    for (const double bytes : sizes) {
      MPI_Barrier(MPI_COMM_WORLD);
      s4u::this_actor::sleep_until(
          std::ceil(s4u::Engine::get_clock() + 1));  // barriers end at different times
      const double begin = MPI_Wtime();
      (caller.*call)(*all.group, bytes);
      double seconds = MPI_Wtime() - begin, longest = 0;
      MPI_Reduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
      if (rank == 0) std::printf("%s,%.0f,%.9f\n", name, bytes, longest);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool two_levels = arguments.at(2) == "two";
  const double scale = std::stod(arguments.at(3));
  if (arguments.at(0) == "step") {
    replay_step(arguments.at(1), two_levels, scale);
  } else {
    std::vector<double> sizes;
    for (std::size_t i = 4; i < arguments.size(); ++i) sizes.push_back(std::stod(arguments[i]));
    time_collectives(std::stoi(arguments.at(1)), two_levels, scale, sizes);
  }
  MPI_Finalize();
}
