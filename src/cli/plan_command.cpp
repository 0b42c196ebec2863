// llampi plan
#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/options.hpp"
#include "llampi/plan/report.hpp"
#include "train/compiled_run.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kUsage =
    "Usage: llampi plan [--config FILE] [--ranks N] [--per-node M] [--section.key=value ...]\n\n"
    "The memory that each rank of `llampi train` would plan with this configuration, to the byte, and what "
    "a\n"
    "step moves. Runs on one process, without a device, and needs of the configuration only the model's\n"
    "config.json: no data, no weights. Keys are those of `llampi train`, taken from the same places.\n";

struct Request {
  RunShape shape;
  std::string device = "cpu";
  bool units = false;
  bool json = false;
};

std::vector<Option> options_of(Request& r) {
  constexpr Range kRanks{.low = 1, .high = 65536};
  return {
      {"ranks", &r.shape.ranks, "ranks of the job", {.range = kRanks}},
      {"per-node",
       &r.shape.ranks_per_node,
       "ranks on each node, consecutive; 0: all are on one",
       {.range = kAtLeastZero}},
      {"threads",
       &r.shape.threads,
       "threads per rank, on which workspaces depend; 0: run.threads or, if that is 0, OMP_NUM_THREADS or, "
       "if "
       "that is not set, cores of this machine / ranks on a node",
       {.range = kAtLeastZero}},
      {"device", &r.device, "what would compute", {.one_of = {"cpu"}}},
      {"units", &r.units, "list the FSDP units too", {}, true},
      {"json", &r.json, "print one JSON object", {}, true},
  };
}

void warn_of_what_is_not_built(const Config& config) {
  const auto settings = not_built(config);
  if (settings.empty()) return;
  print_error(fmt::format(
      "warning: not built yet: {}; the plan assumes the CPU device, which computes in float32 and "
      "has workspaces of its own",
      fmt::join(settings, ", ")));
}

}  // namespace

int plan_command(const Arguments& arguments) {
  Request request;
  if (asks_for_help(arguments)) {
    print(kUsage + options_help(options_of(request)) + config_help());
    return kDone;
  }
  const Config config = resolve_config(arguments, Purpose::plan, options_of(request));
  const CompiledRun run = compile_run(config, request.shape);
  warn_of_what_is_not_built(config);
  const Machine machine{.device = request.device,
                        .ranks = run.shape.ranks,
                        .ranks_per_node = run.shape.ranks_per_node,
                        .threads = run.shape.threads};
  const PlanReport report = make_report(*run.model, run.options, run.groups, run.compiled, machine);
  if (request.json) {
    print(to_json(report) + "\n");
  } else {
    print(format_report(report));
    if (request.units) print("\n" + format_units(*run.model, run.compiled.units));
  }
  return kDone;
}

}  // namespace llampi::cli
