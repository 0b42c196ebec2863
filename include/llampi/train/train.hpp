// The training loop and evaluation: everything above composed. Knows nothing of command lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"

namespace llampi {

enum class Outcome : std::uint8_t { done, stopped };  ///< exit status 0 and 75

/// The configuration as ini files, which those know how to write who know the keys by name.
struct ConfigTexts {
  std::string resolved;  ///< of the run
  std::string defaults =
      {};  ///< of one for which nothing was given: what an older run did, that had no such key
};

/// Trains, or continues, the run that `config` describes. Collective over the world. A file `stop` in run.dir
/// stops it as request_stop() does; it is removed then.
/// @param texts `config`, written into the run folder and into checkpoints with what the run really does
/// otherwise, and compared with the text in the checkpoint that the run continues from
/// @param complain told why the watchdog (run.watchdog_seconds) ends the job: several lines, on one rank,
/// from a thread
/// @throws UserError and CommonError on every rank alike
Outcome train(World& world, const Config& config, const ConfigTexts& texts, const Log& log,
              const std::function<void(const std::string& summary)>& complain = {});

struct Evaluation {
  double loss = 0;        ///< mean over valid labels; not a number if there are none
  double perplexity = 0;  ///< exp(loss)
  std::int64_t tokens = 0;
};

/// What computes, of commands that have no configuration.
struct DeviceOptions {
  std::string device = "auto";  ///< auto, cpu or cuda, as run.device; GPUs compute in bfloat16
  int threads = 0;              ///< per rank; 0: OMP_NUM_THREADS, or cores / ranks on the node
};

struct EvaluateOptions {
  std::int64_t seq_len = 0;  ///< 0: that of the data's rows, or that with which the checkpoint was trained
  std::int64_t micro_batch = 1;
  DeviceOptions compute;
};

/// Loss of a model (Hugging Face folder or checkpoint) over all samples of a token file. Collective.
Evaluation evaluate(World& world, const std::filesystem::path& weights, const std::filesystem::path& data,
                    EvaluateOptions options, const Log& log);

/// What one comparison of the check gave, the largest error over the ranks.
struct CheckedTensor {
  std::string where;  ///< "GPU in bfloat16 against the CPU"
  std::string what;   ///< "gradient of lm_head.weight"
  double error = 0;   ///< relative to the norm; not a number if it is none on some rank
  double allowed = 0;
  int rank = 0;  ///< that has the largest

  bool passed() const { return error <= allowed; }
};
struct CheckResult {
  std::vector<std::string> devices;  ///< by rank
  std::vector<CheckedTensor> tensors;

  bool passed() const;
};

/// Compares what computes here, and moves data between ranks, with what it should give: the CPU with a plain
/// float64 reference, GPUs in every dtype with the CPU, collectives with exact sums. Collective.
/// @throws CommonError if a device or a collective fails
CheckResult check(World& world, const DeviceOptions& options, const Log& log);

/// Requests a clean stop, as SIGUSR1, SIGTERM and SIGINT do: train() drops the step under way before its next
/// micro-batch, saves and returns Outcome::stopped.
void request_stop();
/// Writes this rank's flight record, if the watchdog is on, as SIGTERM does: the process may be killed soon.
/// It is removed again where train() returns.
void request_flight_record();

}  // namespace llampi
