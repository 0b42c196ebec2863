// SPDX-License-Identifier: Apache-2.0
// llampi check
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/ranks.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/core/error.hpp"
#include "llampi/selfcheck/check.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kCheckUsage =
    R"(Usage: [mpirun -n RANKS] llampi check [--device auto|cpu|cuda] [--all] [--json]

Checks that this machine computes correctly. Runs one small training step and compares every tensor:
each rank's CPU with a plain float64 reference, its GPU with its CPU. Also checks exact sums over all
ranks. Exits with status 1 if a difference is larger than rounding explains. Every run on GPUs starts
with this check, in the dtype it computes in.
)";

struct CheckRequest {
  comm::DeviceOptions compute;
  bool all = false;
  bool json = false;
};

std::vector<Option> options_of(CheckRequest& r) {
  return {
      device_option(r.compute),
      threads_option(r.compute.threads),
      {"all", &r.all, "list all tensors, not only the largest differences", {}, true},
      {"json", &r.json, "print a JSON object: passed, devices, tensors", {}, true},
  };
}

void print_json(const selfcheck::CheckResult& result) {
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
  print(nlohmann::ordered_json{{"passed", result.passed()}, {"devices", result.devices}, {"tensors", tensors}}
            .dump() +
        "\n");
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
    print(fmt::format("{}: {} tensors{}\n", tensors[begin].where, end - begin,
                      all ? "" : ", of which this differs most"));
    for (std::size_t i = begin; i < end; ++i) {
      if (all || i == worst || !tensors[i].passed()) print_tensor(tensors[i]);
    }
  }
}

}  // namespace

Manual check_manual() { return manual_of<CheckRequest>(kCheckUsage); }

int check_command(const Arguments& arguments) {
  return run_on_ranks([&](comm::World& world) {
    CheckRequest r;
    const bool speaks = world.rank() == 0;
    const Log log = console_log(speaks, stderr);
    assign_command_line(arguments, options_of(r), 0, log);
    const selfcheck::CheckResult result = selfcheck::check(world, r.compute, log);
    if (speaks) r.json ? print_json(result) : print_table(result, r.all);
    if (!result.passed())
      throw comm::CommonError(
          "the check failed; please report what it printed, with what llampi --version prints");
    return kDone;
  });
}

}  // namespace llampi::cli
