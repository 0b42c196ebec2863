// SPDX-License-Identifier: Apache-2.0
#include "llampi/measure/measure.hpp"

#include <algorithm>
#include <optional>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/core/text.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/fsdp/available_memory.hpp"
#include "llampi/model/llama_config.hpp"
#include "llampi/plan/calibration.hpp"
#include "llampi/train/open_compute.hpp"
#include "measure/bench.hpp"

namespace llampi::measure {
namespace {

constexpr double kWeightOfAlone = 0.002;

std::string key_of(const comm::Compute& compute) {
  if (!compute.on_gpu()) return "cpu";
  for (const auto& gpu : device::known_gpus()) {
    if (compute.gpu_properties.name.find(gpu.driver_name) != std::string::npos) return std::string(gpu.key);
  }
  return "cuda";
}

struct LinkCosts {
  double latency = 0, seconds_of_byte = 0;
  bool bounded = false;  // the bandwidth is that bound, not a fit
};

/// The costs with which seconds = latency + bytes x seconds_of_byte fits all all-gathers and reduce-scatters, by least squares of
/// the relative errors; bytes are those of the bus bandwidth. As in plan::fit_costs() no cost is negative, and the bandwidth is at
/// most twice the best of any row: where another program slows some rows, a fit without bounds could have a negative slope.
std::optional<LinkCosts> fit_links(const Result& result) {
  // Per row: inverse = 1 / seconds, bytes = bytes / seconds. Minimized: the sum of (1 - latency x inverse - seconds_of_byte x bytes)^2.
  double one_one = 0, one_bytes = 0, bytes_bytes = 0, one = 0, all_bytes = 0, most_bytes = 0;
  for (const auto& row : result.rows) {
    if (row.group != "collective" || row.name.starts_with("all_reduce")) continue;
    const double bytes = row.bus_rate * 1e9, inverse = 1 / row.seconds;
    one_one += inverse * inverse, one_bytes += inverse * bytes, bytes_bytes += bytes * bytes;
    one += inverse, all_bytes += bytes;
    most_bytes = std::max(most_bytes, bytes);
  }
  const double determinant = one_one * bytes_bytes - one_bytes * one_bytes;
  if (bytes_bytes == 0 || determinant <= 0) return std::nullopt;
  // The sum of squares is convex: if its least value is out of bounds, the best one that is allowed lies on a bound.
  const double latency = std::max(0.0, (one * bytes_bytes - all_bytes * one_bytes) / determinant);
  const double seconds_of_byte = (all_bytes - latency * one_bytes) / bytes_bytes, least = 0.5 / most_bytes;
  if (seconds_of_byte >= least) return LinkCosts{latency, seconds_of_byte};
  return LinkCosts{(one - least * one_bytes) / one_one, least, true};
}

void add_links(plan::MachineSpeed& machine, const Result& result, const Log& log) {
  const auto links = fit_links(result);
  if (!links) return;
  const bool one_node = result.nodes == 1;
  if (!one_node && result.ranks > result.nodes) {
    log.warning(
        "the machine file has no figures of links: with several ranks on some of several nodes, collectives use both kinds at once. "
        "Run --calibrate on one node for in_node_gb_s, and with one rank on each node for network_gb_s, and put both into one file");
    return;
  }
  if (links->bounded)
    log.warning(
        "small collectives took about as long as large ones: the bandwidth in the machine file is a guess, twice the best that was "
        "measured; measure again while nothing else runs");
  const auto figure = [](double value, const char* note) {
    return plan::Figure{.value = value, .source = plan::Source::measured, .note = note};
  };
  const char* const note = links->bounded ? "a guess: small collectives took about as long as large ones"
                                          : "fitted to all_gather and reduce_scatter of llampi bench";
  if (!one_node && result.gpu != "cpu")
    log.warning(
        "network_gb_s in the machine file is that of one GPU of a node: where each has a NIC of its own, multiply it by the GPUs of a "
        "node, and add that number as gpus_per_node");
  machine.set("bandwidth_reached", figure(1, "the bandwidths are those that collectives reach"));
  machine.set("message_us", figure(0, "part of the latency"));
  const double rate = plan::rounded(1e-9 / links->seconds_of_byte),
               microseconds = plan::rounded(links->latency * 1e6);
  if (one_node) {
    machine.set("in_node_gb_s", figure(rate, note));
    machine.set("in_node_latency_us", figure(microseconds, note));
  } else {
    machine.set("network_gb_s", figure(rate, note));
    machine.set("network_latency_us", figure(microseconds, note));
  }
}

/// The same on all ranks, which are to compile the same steps by it: what every rank has. Collective.
train::RunShape shape_of_job(comm::World& world, const comm::Compute& compute, int threads) {
  const auto& gpu = compute.gpu_properties;
  std::int64_t least[] = {-threads, 100 * gpu.major + gpu.minor};  // of threads the most
  comm::min_over_ranks(world, least);
  train::RunShape shape = train::shape_of(world.topology());
  shape.threads = static_cast<int>(-least[0]);
  shape.memory = fsdp::available_to_all(world, compute);
  shape.backend = compute.world().backend();
  if (compute.on_gpu()) {
    shape.gpu = gpu.name;
    shape.gpu_major = static_cast<int>(least[1] / 100);
    shape.gpu_minor = static_cast<int>(least[1] % 100);
  }
  return shape;
}

/// The numbers of the model that decide how long a step takes.
void add_model(std::map<std::string, std::string>& configuration, const model::LlamaConfig& model) {
  for (const auto& [name, value] :
       {std::pair("vocab_size", model.vocab_size), std::pair("hidden_size", model.hidden_size),
        std::pair("intermediate_size", model.intermediate_size), std::pair("num_hidden_layers", model.layers),
        std::pair("num_attention_heads", model.query_heads),
        std::pair("num_key_value_heads", model.key_value_heads), std::pair("head_dim", model.head_dim)})
    configuration[name] = std::to_string(value);
}

}  // namespace

Result measure(comm::World& world, const train::Config& config, const Settings& settings, const Log& log) {
  Result result;
  const auto& topology = world.topology();
  comm::Compute compute = train::open_compute_of_run(world, config, {}, log);
  result.device = compute.device().describe();
  result.gpu = key_of(compute);
  result.ranks = world.size();
  result.nodes = topology.nodes;
  result.ranks_on_node = topology.local_ranks;
  result.shape = shape_of_job(world, compute, comm::threads_per_rank(world, config.run.threads));
  add_model(result.configuration, model::LlamaConfig::read(config.model.config));
  const Bench bench{.world = world,
                    .compute = compute,
                    .config = config,
                    .settings = settings,
                    .shape = result.shape,
                    .attention = plan::attention_kernels(result.shape.memory.backend, config.run.attention,
                                                         config.run.deterministic),
                    .rows = result.rows};
  if (settings.strategies_only) {
    log.info("measuring steps with each strategy");
    measure_strategies(bench);
    return result;
  }
  if (settings.whole_steps) {
    log.info("measuring steps");
    measure_steps(bench);
  }
  log.info("measuring collectives");
  measure_collectives(bench);
  if (settings.single) {
    log.info("measuring products, attention and memory");
    measure_operations(bench);
  }
  return result;
}

plan::MachineSpeed calibrate(const Result& result, const std::string& name, const Log& log) {
  plan::MachineSpeed machine;
  machine.name = name;
  machine.device = result.gpu;
  const bool on_cpu = result.gpu == "cpu";
  if (on_cpu) machine.cores = result.ranks_on_node * result.shape.threads;
  machine.description = fmt::format("written by llampi bench --calibrate: {}, {} on {}", result.device,
                                    count(result.ranks, "rank"), count(result.nodes, "node"));
  // Operations of the step count by their share of it. Those alone are faster than in a step, which finds its operands in memory
  // and not in caches: they only say how times change with shapes.
  double step_seconds = 0;
  for (const auto& row : result.rows) {
    if (row.group == "operation") step_seconds += row.calls * row.seconds;
  }
  std::vector<plan::TimedWork> rows;
  for (const auto& row : result.rows) {
    const bool alone = row.group == "product" || row.group == "attention" || row.group == "memory";
    if (row.group == "operation") {
      rows.push_back({row.amounts, row.seconds, row.calls * row.seconds / step_seconds});
    } else if (alone) {
      rows.push_back({row.amounts, row.seconds, kWeightOfAlone});
    }
  }
  const plan::Figure source{
      .value = 0, .source = plan::Source::measured, .note = "fitted to the operations of llampi bench"};
  plan::set_costs(machine, plan::fit_costs(rows), on_cpu ? 1.0 / result.ranks_on_node : 1, source);
  add_links(machine, result, log);
  return machine;
}

}  // namespace llampi::measure
