// SPDX-License-Identifier: Apache-2.0
// The formula of plan/collective_time beside what was simulated. bench/smpi.sh compiles and runs it.
//
//   smpi_formula fit ROWS.csv
//       fits its two constants (bandwidth_reached, seconds_per_message) to every other row and prints how far off it is on the rest. Messages of
//       small collectives over one level overlap more than the formula has it: they are not fitted. A row:
//       ROUTE,RANKS,NODES,IN_GB_S,IN_US,RANK_GB_S,OUT_US,COLLECTIVE,BYTES,SECONDS,MOST_RANKS_OF_A_NODE,NICS_OF_A_NODE
//   smpi_formula step LIST.json ROUTE LATENCY_US
//       seconds of a step as `llampi plan --json --actions` lists it, by ROUTE (one, two), if messages took no time to be started
//   smpi_formula waiting LIST.json ROUTE LATENCY_US
//       seconds of it in which nothing is computed, and their percentage
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "llampi/fsdp/streams.hpp"
#include "llampi/plan/step_time.hpp"

namespace {

using namespace llampi::plan;

constexpr double kInNodeLatency = 3e-6;  // as `llampi plan` has it

Route route_of(const std::string& word) { return word == "two" ? Route::two_levels : Route::direct; }

Phases phases_of(const std::string& collective, const NetworkSpeed& network, GroupShape group, double bytes,
                 Route route) {
  if (collective == "all_gather" || collective == "unshard")
    return all_gather_phases(network, group, bytes, route);
  if (collective == "reduce_scatter" || collective == "reduce")
    return reduce_scatter_phases(network, group, bytes, route);
  return all_reduce_phases(network, group, bytes, route);
}

// ---- fit ----

struct Row {
  std::string text, route, collective;
  GroupShape group;
  NetworkSpeed network;
  double bytes = 0;
  double seconds = 0;  ///< simulated

  bool large() const { return bytes >= 64 << 20; }
  bool two_levels() const { return route == "two"; }
  double error(double bandwidth_reached, double seconds_per_message) const {
    NetworkSpeed with = network;
    with.bandwidth_reached = bandwidth_reached;
    with.seconds_per_message = seconds_per_message;
    return llampi::plan::seconds(phases_of(collective, with, group, bytes, route_of(route))) / seconds - 1;
  }
};

std::vector<Row> read_rows(const std::string& file) {
  std::vector<Row> rows;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::vector<std::string> f;
    for (std::string field; std::getline(fields, field, ',');) f.push_back(field);
    if (f.size() != 12) continue;
    const auto number = [&](std::size_t i) { return std::stod(f[i]); };
    const NetworkSpeed network{.in_node = {number(3) * 1e9, number(4) * 1e-6},
                               .between_nodes = {number(5) * 1e9, number(6) * 1e-6},
                               .ranks_share_nics = f[11] == "1"};
    const int ranks = std::stoi(f[1]), nodes = std::stoi(f[2]), most = std::stoi(f[10]);
    const GroupShape group{.ranks = ranks,
                           .nodes = nodes,
                           .largest_node = most,
                           .smallest_node = ranks - (nodes - 1) * most};  // the last, which has what is left
    rows.push_back({line, f[0], f[7], group, network, number(8), number(9)});
  }
  return rows;
}

struct Fit {
  double bandwidth_reached = 1, seconds_per_message = 0;
};

/// The least sum of squared relative errors, on a grid.
Fit fit(const std::vector<Row>& rows) {
  Fit best;
  double least = std::numeric_limits<double>::infinity();
  for (int b = 800; b <= 1000; b += 2) {
    for (int m = 0; m <= 60; ++m) {
      const Fit candidate{.bandwidth_reached = b / 1000.0, .seconds_per_message = m * 0.05e-6};
      double sum = 0;
      for (const Row& row : rows)
        sum += std::pow(row.error(candidate.bandwidth_reached, candidate.seconds_per_message), 2);
      if (sum < least) least = sum, best = candidate;
    }
  }
  return best;
}

void print_errors(const std::string& name, std::vector<double> errors) {
  if (errors.empty()) return;
  std::ranges::sort(errors);
  std::printf("%-44s %4zu rows, error: median %.2f %%, most %.2f %%\n", name.c_str(), errors.size(),
              100 * errors[errors.size() / 2], 100 * errors.back());
}

bool verdict(bool holds, const std::string& what) {
  std::printf("verdict: %s: %s\n", holds ? "yes" : "NO", what.c_str());
  return holds;
}

int fit_rows(const std::string& file) {
  constexpr double kMost = 0.05, kAgrees = 0.01;
  std::vector<Row> fitted, rest;
  bool odd = false;
  for (const Row& row : read_rows(file)) {
    const bool fits_model = row.large() || row.two_levels();
    ((odd = !odd) && fits_model ? fitted : rest).push_back(row);
  }
  const Fit constants = fit(fitted);
  std::printf("fitted to %zu rows: bandwidth_reached %.3f, seconds_per_message %.2g\n", fitted.size(),
              constants.bandwidth_reached, constants.seconds_per_message);
  double worst = 0;
  std::vector<double> errors;
  std::map<std::string, std::vector<double>> by_kind;
  for (const Row& row : rest) {
    const double error = std::abs(row.error(constants.bandwidth_reached, constants.seconds_per_message));
    errors.push_back(error);
    by_kind[row.collective + (row.two_levels() ? ", two levels, " : ", one level, ") +
            (row.large() ? "64 MiB and more" : "1 MiB and less")]
        .push_back(error);
    if (row.large() || row.two_levels()) worst = std::max(worst, error);
  }
  for (const auto& [kind, of_kind] : by_kind) print_errors("  " + kind, of_kind);
  print_errors("all that was not fitted", errors);
  const NetworkSpeed program;
  bool good = verdict(worst <= kMost, "but for small ones over one level, none is off by more than 5 %");
  good &=
      verdict(std::abs(program.bandwidth_reached / constants.bandwidth_reached - 1) <= kAgrees &&
                  std::abs(program.seconds_per_message / constants.seconds_per_message - 1) <= 10 * kAgrees,
              "the program's constants are the fitted ones");
  return good ? 0 : 1;
}

// ---- steps ----

llampi::device::Stream stream_named(const std::string& name) {
  for (const auto& stream : llampi::fsdp::kAllStreams)
    if (stream.name() == name) return stream;
  throw std::runtime_error("no stream " + name);
}

StepTime time_of(const std::string& file, Route route, double latency_us, double seconds_per_message) {
  const auto json = nlohmann::json::parse(std::ifstream(file));
  const int ranks = json.at("ranks"), per_node = json.at("ranks_per_node"), shards = json.at("shard_ranks");
  const auto& speeds = json.at("predicted");
  const NetworkSpeed network{
      .in_node = {speeds.at("in_node_bytes_per_second"), kInNodeLatency},
      .between_nodes = {speeds.at("between_nodes_bytes_per_second"), latency_us * 1e-6},
      .seconds_per_message = seconds_per_message};
  std::vector<int> shard_group, replicate_group, node_of_rank;
  for (int r = 0; r < ranks; ++r) node_of_rank.push_back(r / per_node);
  for (int r = 0; r < shards; ++r) shard_group.push_back(r);
  for (int r = 0; r < ranks; r += shards) replicate_group.push_back(r);
  std::vector<llampi::fsdp::Action> actions;
  std::vector<std::string> names;  // which actions point at
  for (const auto& a : json.at("actions")) names.push_back(a.at("op"));
  std::vector<Phases> phases;
  for (const auto& a : json.at("actions")) {
    actions.push_back({.op = llampi::fsdp::Op(names[actions.size()].c_str()),
                       .stream = stream_named(a.at("stream")),
                       .waits = a.at("waits")});
    const std::string group = a.value("ranks", "");
    if (group.empty()) {
      phases.push_back({{Resource::own, a.at("seconds").get<double>()}});
    } else {
      phases.push_back(
          phases_of(names[phases.size()], network,
                    shape_of(group == "shard_group" ? shard_group : replicate_group, node_of_rank),
                    a.value("bytes", 64.0), route));
    }
  }
  return time_of_step(actions, phases);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.at(0) == "fit") return fit_rows(arguments.at(1));
  const bool simulated = arguments.at(0) == "step";
  const StepTime time = time_of(arguments.at(1), route_of(arguments.at(2)), std::stod(arguments.at(3)),
                                simulated ? 0 : NetworkSpeed{}.seconds_per_message);
  if (simulated) {
    std::printf("%.6f\n", time.seconds);
  } else {
    std::printf("%.3f,%.1f\n", time.waiting_seconds(), 100 * time.waiting_seconds() / time.seconds);
  }
}
