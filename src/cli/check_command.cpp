// SPDX-License-Identifier: Apache-2.0
// llampi check
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/check_speed.hpp"
#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/keys.hpp"
#include "cli/options.hpp"
#include "cli/ranks.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/core/text.hpp"
#include "llampi/plan/machine.hpp"
#include "llampi/selfcheck/check.hpp"
#include "llampi/train/preflight.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kCheckUsage =
    R"(Usage: [mpirun -n RANKS] llampi check [--device auto|cpu|cuda] [--all] [--json]
       [mpirun -n RANKS] llampi check --config FILE [--section.key=value ...] [--all] [--json]

Checks that this machine computes correctly. Runs one small training step and compares every tensor:
each rank's CPU with a plain float64 reference, its GPU with its CPU. Also checks exact sums over all
ranks. Exits with status 1 if a difference is larger than rounding explains. Every run on GPUs starts
with this check, in the dtype it computes in.

With --config or any key of `llampi train`, on the ranks of the run, also checks what a long run with
this configuration depends on, and prints a line that begins with PASS, FAIL or SKIP for each check:
whether all ranks have the same program, data and weights, slow ranks and slow links by name, four steps
on one batch with a finite and falling loss, equal replicas, memory, disk space for the planned
checkpoints, a checkpoint that is saved and loaded, and whether saving takes too much of the time. With
--machine also collectives and tokens/s against what `llampi plan` predicts. Nothing of the run is
changed. A line with FAIL says what is wrong, where, and what to do.

Exit status: 0 all checks passed, 1 a check failed, 2 invalid input.
)";

struct CheckRequest {
  comm::DeviceOptions compute;
  bool all = false;
  bool json = false;
  bool skip_arithmetic = false;
  std::string machine;
};

std::vector<Option> output_options(CheckRequest& r) {
  return {
      {"all", &r.all, "list all tensors, not only the largest differences", {}, true},
      {"json",
       &r.json,
       "print a JSON object: passed, devices, tensors, left_out (what was not compared, and why) and, with a "
       "configuration, checks and figures",
       {},
       true},
  };
}

/// Beside the keys, which say what computes.
std::vector<Option> options_with_keys(CheckRequest& r) {
  std::vector<Option> options = output_options(r);
  options.push_back({"skip-arithmetic",
                     &r.skip_arithmetic,
                     "with a configuration: do not compare tensors, which takes seconds to a minute",
                     {},
                     true});
  options.push_back(
      {"machine",
       &r.machine,
       "with a configuration: also compare collectives and tokens/s with what llampi plan --machine "
       "predicts; a name that llampi plan --help lists, or a machine file",
       {.name = "NAME|FILE"}});
  return options;
}

/// Without a configuration, and for the help.
std::vector<Option> options_of(CheckRequest& r) {
  std::vector<Option> options = {device_option(r.compute), threads_option(r.compute.threads)};
  for (auto& option : options_with_keys(r)) options.push_back(std::move(option));
  return options;
}

nlohmann::ordered_json to_json(const selfcheck::CheckResult& result) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const auto& t : result.tensors) {
    // Errors that are not finite become null.
    tensors.push_back({{"where", t.where},
                       {"what", t.what},
                       {"error", t.error},
                       {"allowed", t.allowed},
                       {"rank", t.rank},
                       {"passed", t.passed()}});
  }
  return {{"passed", result.passed()},
          {"devices", result.devices},
          {"tensors", tensors},
          {"left_out", result.left_out}};
}

nlohmann::ordered_json to_json(const std::vector<selfcheck::Link>& links) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& link : links)
    list.push_back({{"a", link.a}, {"b", link.b}, {"bytes_per_second", link.bytes_per_second}});
  return list;
}

nlohmann::ordered_json to_json(const train::PreflightFigures& f) {
  return {{"product_seconds", f.product_seconds},
          {"links_between_nodes", to_json(f.links.between_nodes)},
          {"links_inside_nodes", to_json(f.links.inside_nodes)},
          {"copy_bytes_per_second", f.copy_bytes_per_second},
          {"losses", f.losses},
          {"step_seconds", f.step_seconds},
          {"tokens_per_second", f.tokens_per_second},
          {"planned_bytes", f.planned_bytes},
          {"used_bytes", f.used_bytes},
          {"resident_bytes", f.resident_bytes},
          {"checkpoint_bytes", f.checkpoint_bytes},
          {"save_seconds", f.save_seconds},
          {"load_seconds", f.load_seconds}};
}

nlohmann::ordered_json to_json(const MachineComparison& compared) {
  nlohmann::ordered_json collectives = nlohmann::ordered_json::array();
  for (const auto& c : compared.collectives)
    collectives.push_back({{"name", c.name},
                           {"seconds", c.seconds},
                           {"bus_gb_s", c.bus_rate},
                           {"predicted_bus_gb_s", c.predicted_bus_rate}});
  return {{"collectives", collectives},
          {"predicted_tokens_per_second", compared.predicted_tokens_per_second}};
}

nlohmann::ordered_json to_json(const std::vector<train::PreflightCheck>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& check : checks)
    list.push_back({{"name", check.name}, {"verdict", word_of(check.verdict)}, {"text", check.text}});
  return list;
}

/// How much of what is allowed an error is; what allows nothing stands first where it differs.
double share(const selfcheck::CheckedTensor& t) {
  return t.allowed > 0 ? t.error / t.allowed : (t.error > 0 ? INFINITY : 0);
}

void print_tensor(const selfcheck::CheckedTensor& t) {
  print(fmt::format("  {:<6} {:>8.1e} of {:>8.1e} allowed  rank {:<4} {}\n", t.passed() ? "ok" : "WRONG",
                    t.error, t.allowed, t.rank, t.what));
}

void print_table(const selfcheck::CheckResult& result, bool all) {
  for (std::size_t rank = 0; rank < result.devices.size(); ++rank)
    print(fmt::format("rank {} on {}\n", rank, result.devices[rank]));
  const auto& tensors = result.tensors;
  for (std::size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    std::size_t worst = begin;
    for (end = begin; end < tensors.size() && tensors[end].where == tensors[begin].where; ++end) {
      if (share(tensors[end]) > share(tensors[worst])) worst = end;
    }
    print(fmt::format("{}: {}{}\n", tensors[begin].where,
                      count(static_cast<std::int64_t>(end - begin), "tensor"),
                      all ? "" : "; the one with the largest difference:"));
    for (std::size_t i = begin; i < end; ++i) {
      if (all || i == worst || !tensors[i].passed()) print_tensor(tensors[i]);
    }
  }
  for (const std::string& what : result.left_out) print(fmt::format("not compared: {}\n", what));
}

void print_check(const train::PreflightCheck& check) {
  print(fmt::format("{}  {:<10}  {}\n", word_of(check.verdict), check.name, check.text));
}

train::PreflightCheck verdict_on_tensors(const selfcheck::CheckResult& result) {
  const auto wrong = std::count_if(result.tensors.begin(), result.tensors.end(),
                                   [](const auto& tensor) { return !tensor.passed(); });
  if (wrong == 0)
    return {
        "arithmetic", train::Verdict::pass,
        fmt::format("{} tensors match the reference{}", result.tensors.size(),
                    result.left_out.empty() ? ""
                                            : fmt::format("; {} left out (--all says why)",
                                                          count(std::ssize(result.left_out), "comparison")))};
  return {
      "arithmetic", train::Verdict::fail,
      fmt::format(
          "{} of {} tensors differ from the reference by more than rounding explains; please report what is "
          "printed above, with what llampi --version prints",
          wrong, result.tensors.size())};
}

/// "--config" of "--config=FILE".
std::string option_name(const std::string& argument) { return argument.substr(0, argument.find('=')); }

/// True if training keys are given.
bool has_configuration(const Arguments& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    const std::string name = option_name(argument);
    return name == "--config" || (name.starts_with("--") && name.find('.') != std::string::npos);
  });
}

int check_with_configuration(comm::World& world, const Arguments& arguments) {
  CheckRequest r;
  const bool speaks = world.rank() == 0;
  const Log log = console_log(speaks, stderr);
  const train::Config config = resolve_on_rank_0(world, arguments, log, options_with_keys(r));
  const bool prints = speaks && !r.json;  // r is set on rank 0
  const std::string machine = world.broadcast(r.machine, 0);
  if (!machine.empty()) comm::agree(world, [&] { plan::read_machine(machine); });
  selfcheck::CheckResult arithmetic;
  std::vector<train::PreflightCheck> checks = {{"arithmetic", train::Verdict::skip, "as asked"}};
  const bool skips = comm::broadcast_value(world, r.skip_arithmetic);
  const auto compare_tensors = [&] {
    if (!skips) {
      arithmetic = selfcheck::check(
          world,
          {.device = config.run.device, .threads = config.run.threads, .share_gpu = config.run.share_gpu},
          Log());
      checks.front() = verdict_on_tensors(arithmetic);
      if (prints && (r.all || !arithmetic.passed())) print_table(arithmetic, r.all);
    }
    if (prints) print_check(checks.front());
  };
  MachineComparison compared;
  const auto compare_machines = [&](const train::PreflightFigures& figures) {
    compared = compare_with_machine(world, config, machine, figures);
    for (const auto& check : compared.checks) {
      if (prints) print_check(check);
    }
  };
  train::PreflightOptions options{
      .before = compare_tensors,
      .program = version_text(),
      .tell =
          [prints](const train::PreflightCheck& check) {
            if (prints) print_check(check);
          },
      .complain = [](const std::string& summary) { print_summary("watchdog: " + summary); }};
  if (!machine.empty()) options.after = compare_machines;
  const train::ConfigTexts texts{to_ini(config), to_ini(train::Config()), key_of};
  const train::PreflightResult result = train::preflight(world, config, texts, options, log);
  checks.insert(checks.end(), result.checks.begin(), result.checks.end());
  checks.insert(checks.end(), compared.checks.begin(), compared.checks.end());
  const auto failed = std::count_if(checks.begin(), checks.end(),
                                    [](const auto& check) { return check.verdict == train::Verdict::fail; });
  if (speaks && r.json) {
    nlohmann::ordered_json json = to_json(arithmetic);
    json["passed"] = failed == 0;
    json["checks"] = to_json(checks);
    json["figures"] = to_json(result.figures);
    if (!machine.empty()) json["figures"].update(to_json(compared));
    print(json_text(json) + "\n");
  }
  if (prints) print(failed == 0 ? "no check failed\n" : fmt::format("{} failed\n", count(failed, "check")));
  return failed == 0 ? kDone : kFailed;
}

}  // namespace

Manual check_manual() { return with_keys(manual_of<CheckRequest>(kCheckUsage)); }

int check_command(const Arguments& arguments) {
  return run_on_ranks([&](comm::World& world) {
    if (has_configuration(arguments)) return check_with_configuration(world, arguments);
    for (const std::string& argument : arguments) {
      if (option_name(argument) == "--skip-arithmetic" || option_name(argument) == "--machine")
        throw_user_error("{} needs a configuration: give --config, or keys of llampi train",
                         option_name(argument));
    }
    CheckRequest r;
    const bool speaks = world.rank() == 0;
    const Log log = console_log(speaks, stderr);
    auto options = options_of(r);
    // --config itself has led to check_with_configuration(): a misspelt one is to suggest it.
    std::string never_set;
    options.push_back({"config", &never_set, "", {.name = "FILE"}});
    assign_command_line(arguments, options, 0, log);
    const selfcheck::CheckResult result = selfcheck::check(
        world, {.device = r.compute.device, .threads = r.compute.threads, .option = "--device"}, log);
    if (speaks && r.json) print(to_json(result).dump() + "\n");
    if (speaks && !r.json) print_table(result, r.all);
    if (!result.passed())
      throw comm::CommonError(
          "the check failed; please report what it printed, with what llampi --version prints");
    return kDone;
  });
}

}  // namespace llampi::cli
