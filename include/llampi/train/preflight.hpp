// SPDX-License-Identifier: Apache-2.0
// Checks before a long run, with its own configuration on its own ranks: what would stop it, hold it up or spoil it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/core/words.hpp"
#include "llampi/selfcheck/speed.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

enum class Verdict : std::uint8_t {
  pass,
  fail,
  skip,  ///< there is nothing to compare, or an earlier failure leaves nothing to check with
};
constexpr auto word_table(Verdict) {
  return std::to_array<Word<Verdict>>(
      {{Verdict::pass, "PASS"}, {Verdict::fail, "FAIL"}, {Verdict::skip, "SKIP"}});
}

struct PreflightCheck {
  std::string name;  ///< "checkpoint"
  Verdict verdict = Verdict::pass;
  std::string text;  ///< what was found; of a failure: what is wrong, where, what to do
};

/// Figures, largest or slowest over the ranks. What was not measured is 0 or empty.
struct PreflightFigures {
  std::vector<double> product_seconds;  ///< by rank
  selfcheck::LinkSpeeds links;
  std::vector<double> copy_bytes_per_second;  ///< by rank: selfcheck::measure_host_copies(), on GPUs
  std::vector<double> losses;                 ///< of the steps, global means
  double step_seconds = 0;                    ///< of the fastest step
  double tokens_per_second = 0;               ///< in it, of all ranks
  std::int64_t planned_bytes = 0, used_bytes = 0,
               resident_bytes = 0;  ///< of a rank; on GPUs resident: of all that use it
  std::int64_t checkpoint_bytes = 0;
  double save_seconds = 0, load_seconds = 0;
};

struct PreflightResult {
  std::vector<PreflightCheck> checks;
  PreflightFigures figures;

  bool passed() const;
};

struct PreflightOptions {
  /// Work before and after the checks, under their watchdog; collective. May be empty
  std::function<void()> before = {};
  std::function<void(const PreflightFigures& figures)> after = {};  ///< with the devices free
  std::string
      program;  ///< version of this rank's program and libraries; lines that differ between ranks are named
  std::function<void(const PreflightCheck&)> tell;  ///< told of each check when it is done, on every rank
  /// As train()'s.
  std::function<void(const std::string& summary)> complain;
};

/// Checks what train() with this configuration would depend on, and changes nothing: in run.dir, or where it would be made, there
/// is only a temporary folder meanwhile. Names of checks, in this order: program, data, weights, products, links, steps,
/// replicas, memory, room, checkpoint, saving; of a run on GPUs that keeps something in host memory copies, too. Collective; the result is the same on all ranks.
/// @throws UserError for what train() would refuse on all ranks
PreflightResult preflight(comm::World& world, const Config& config, const ConfigTexts& texts,
                          const PreflightOptions& options, const Log& log);

}  // namespace llampi::train
