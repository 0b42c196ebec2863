// Which rank has which GPU.
#include <algorithm>
#include <charconv>

#include "llampi/comm/nccl.hpp"

namespace llampi::comm {
namespace {

/// What the ranks tell each other.
struct Seat {
  int gpus = 0;  ///< visible
  int node = 0;
  std::string host;
  std::string bus_id = {};
  std::string identity = {};  ///< GpuProperties::identity()

  bool same_gpu(const Seat& other) const { return node == other.node && identity == other.identity; }
};

int number(const std::string& text) {
  int value = 0;
  const auto end = text.data() + text.size();
  require(std::from_chars(text.data(), end, value).ptr == end, "a rank's GPU, in unknown words");
  return value;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

std::vector<Seat> gather_seats(World& world, const Seat& own) {
  std::vector<Seat> seats;
  for (const auto& text : world.all_gather(
           fmt::format("{}\n{}\n{}\n{}\n{}", own.gpus, own.node, own.host, own.bus_id, own.identity))) {
    const auto lines = split_lines(text);
    require(lines.size() == 5, "a rank's GPU, in unknown words");
    seats.push_back({number(lines[0]), number(lines[1]), lines[2], lines[3], lines[4]});
  }
  return seats;
}

void require_equal_counts(const std::vector<Seat>& seats) {
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const Seat& seat = seats[rank];
    if (seat.gpus == seats[0].gpus) continue;
    throw_user_error(
        "rank {} on {} sees {} GPUs, but rank 0 on {} sees {}: give all ranks the same number (look at "
        "CUDA_VISIBLE_DEVICES and at the GPUs that the job asks for)",
        rank, seat.host, seat.gpus, seats[0].host, seats[0].gpus);
  }
  if (seats[0].gpus == 0)
    throw_user_error("no rank sees a GPU: use run.device = cpu, or ask for GPUs where the job is submitted");
}

void require_own_gpus(const std::vector<Seat>& seats) {
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const auto other = std::find_if(seats.begin(), seats.begin() + static_cast<std::ptrdiff_t>(rank),
                                    [&](const Seat& seat) { return seat.same_gpu(seats[rank]); });
    if (&*other == &seats[rank]) continue;
    throw_user_error(
        "ranks {} and {} on {} would share GPU {}, as every rank there sees {}: start no more ranks on a "
        "node than it has GPUs (or set run.share_gpu = true, which is slow and for tests)",
        other - seats.begin(), rank, seats[rank].host, seats[rank].bus_id, seats[rank].gpus);
  }
}

}  // namespace

GpuOfRank gpu_of_rank(World& world, const std::vector<device::GpuProperties>& gpus, bool share_gpu) {
  const Topology& topology = world.topology();
  const int count = static_cast<int>(gpus.size());
  GpuOfRank result{.index = count == 0 ? 0 : topology.local_rank % count};
  Seat own{.gpus = count, .node = topology.node, .host = topology.host};
  if (count > 0) {
    const device::GpuProperties& gpu = gpus[static_cast<std::size_t>(result.index)];
    own.bus_id = gpu.bus_id;
    own.identity = gpu.identity();
  }
  const auto seats = gather_seats(world, own);
  require_equal_counts(seats);
  if (!share_gpu) require_own_gpus(seats);
  result.ranks = static_cast<int>(
      std::count_if(seats.begin(), seats.end(), [&](const Seat& seat) { return seat.same_gpu(own); }));
  return result;
}

std::string gpu_table(World& world, const std::vector<device::GpuProperties>& gpus, int gpu) {
  const device::GpuProperties& own = gpus.at(static_cast<std::size_t>(gpu));
  std::vector<std::vector<std::string>> rows = {{"rank", "host", "GPU", "bus id", "name"}};
  const auto texts =
      world.all_gather(fmt::format("{}\n{}\n{}\n{}", world.topology().host, gpu, own.bus_id, own.name));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    rows.push_back(split_lines(texts[rank]));
    rows.back().insert(rows.back().begin(), std::to_string(rank));
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row.at(i).size());
  }
  std::string table;
  for (const auto& row : rows) {
    table += fmt::format("{}{:>{}}  {:<{}}  {:>{}}  {:<{}}  {}", table.empty() ? "" : "\n", row[0], widths[0],
                         row[1], widths[1], row[2], widths[2], row[3], widths[3], row[4]);
  }
  return table;
}

}  // namespace llampi::comm
