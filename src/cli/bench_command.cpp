// SPDX-License-Identifier: Apache-2.0
// llampi bench
#include <filesystem>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/option_table.hpp"
#include "cli/options.hpp"
#include "cli/ranks.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/measure/measure.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kBenchUsage =
    R"(Usage: [mpirun -n RANKS] llampi bench [--config FILE] [--section.key=value ...] [--json FILE]
                                      [--compare FILE] [--calibrate FILE] [--folder FOLDER]

Measures how fast this machine trains the configured model: whole steps on random tokens by phase and,
with several ranks, with each strategy; matrix products, attention and memory-bound operations alone;
collectives, with bandwidths as nccl-tests define them; with --folder, saving and loading a checkpoint.
Each time is the shortest of several repetitions, on the slowest rank. Takes the same keys as
`llampi train`, from the same places, and reads only the model's config.json: no data, no weights.
)";

struct BenchRequest {
  measure::Settings settings;
  std::string folder, json, compare, calibrate;
  bool steps_only = false, strategies = false;
};

std::vector<Option> options_of(BenchRequest& r) {
  constexpr Range kSteps{.low = 1, .high = 10000};
  return {
      {"json", &r.json, "file to write the result to, for --compare", {.name = "FILE"}},
      {"compare",
       &r.compare,
       "file of an earlier --json: also print how much faster or slower each row is than in that file",
       {.name = "FILE"}},
      {"calibrate",
       &r.calibrate,
       "machine file to write, for llampi plan --machine: figures fitted to what was measured",
       {.name = "FILE"}},
      {"folder",
       &r.folder,
       "folder in which a checkpoint is saved, loaded and deleted, to measure its speed",
       {.name = "FOLDER"}},
      {"steps", &r.settings.steps, "number of timed steps of each kind", {.range = kSteps}},
      {"seconds",
       &r.settings.seconds,
       "time in seconds to repeat a single operation for",
       {.range = kPositive}},
      {"steps-only",
       &r.steps_only,
       "measure only steps and collectives, and only the configured strategy",
       {},
       true},
      {"strategies",
       &r.strategies,
       "measure only steps, with each strategy in turn, in three interleaved rounds; print the tokens/s of each "
       "against full_shard",
       {},
       true},
  };
}

/// Whether `read` accepts a file.
template <class Read>
bool accepts(const std::filesystem::path& path, const Read& read) {
  try {
    read(io::read_whole(path), path.string());
    return true;
  } catch (const UserError&) {
    return false;
  }
}

io::OutputFile json_file(const std::string& path) {
  return {.path = io::follow_links(path),
          .kind = "a result of llampi bench",
          .is_own = [](const auto& file) { return accepts(file, measure::from_json); },
          .advice = "name another file"};
}

io::OutputFile machine_file(const std::string& path) {
  return {.path = io::follow_links(path),
          .kind = "a machine file",
          .is_own = [](const auto& file) { return accepts(file, plan::parse_machine); },
          .advice = "name another file"};
}

/// Before anything is measured.
void check_output(const io::OutputFile& output) {
  output.check();
  const io::TemporaryFile probe(io::temporary_beside(output.path));
  io::PosixFile::create(probe.path());
}

measure::Result read_result(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) throw_user_error("there is no file {} to compare with", path);
  return measure::from_json(io::read_whole(path), path);
}

}  // namespace

Manual bench_manual() { return with_keys(manual_of<BenchRequest>(kBenchUsage)); }

int bench_command(const Arguments& arguments) {
  return run_on_ranks([&](comm::World& world) {
    const bool speaks = world.rank() == 0;
    const Log log = console_log(speaks, stderr);
    BenchRequest r;  // set on rank 0; the others need its settings only
    const train::Config config = resolve_on_rank_0(world, arguments, log, options_of(r), Purpose::plan);
    r.settings.steps = comm::broadcast_value(world, r.settings.steps);
    r.settings.seconds = comm::broadcast_value(world, r.settings.seconds);
    r.settings.folder = world.broadcast(r.folder, 0);
    r.strategies = comm::broadcast_value(world, r.strategies);
    r.steps_only = comm::broadcast_value(world, r.steps_only);
    if (r.steps_only) r.settings.strategies = r.settings.single = false;
    r.settings.strategies_only = r.strategies;
    comm::on_rank_0(world, [&] {
      if (r.strategies && (r.steps_only || !r.calibrate.empty() || !r.folder.empty()))
        throw_user_error("--strategies is not possible with {}; leave that out", r.steps_only ? "--steps-only"
                                                                                 : r.calibrate.empty()
                                                                                     ? "--folder"
                                                                                     : "--calibrate");
      if (r.strategies && world.size() == 1)
        throw_user_error("--strategies needs several ranks; start it with mpirun -n RANKS");
      if (r.steps_only && !r.calibrate.empty())
        throw_user_error("--calibrate needs single operations; leave --steps-only out");
      if (!r.folder.empty() && !std::filesystem::is_directory(r.folder))
        throw_user_error("--folder {} is not a folder; create it first", r.folder);
      if (!r.compare.empty()) read_result(r.compare);
      if (!r.json.empty() && std::filesystem::path(r.json).lexically_normal() ==
                                 std::filesystem::path(r.calibrate).lexically_normal())
        throw_user_error("--json and --calibrate are both {}; name another file for one of them", r.json);
      if (!r.json.empty()) check_output(json_file(r.json));
      if (!r.calibrate.empty()) check_output(machine_file(r.calibrate));
    });
    measure::Result result = measure::measure(world, config, r.settings, log);
    result.configuration.merge(values_of(config));
    comm::on_rank_0(world, [&] {
      print(measure::format(result));
      if (!r.compare.empty()) print("\n" + measure::format_comparison(result, read_result(r.compare)));
      if (!r.json.empty()) json_file(r.json).write(measure::to_json(result));
      if (!r.calibrate.empty()) {
        const std::string name = std::filesystem::path(r.calibrate).stem().string();
        machine_file(r.calibrate).write(plan::to_json(measure::calibrate(result, name, log)));
      }
    });
    return kDone;
  });
}

}  // namespace llampi::cli
