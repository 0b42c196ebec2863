// The training loop, evaluation and generation: everything above composed. Knows nothing of command lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"

namespace llampi {

/// An error that every rank throws alike: one of them may print it for all.
class CommonError : public Error {
 public:
  using Error::Error;
};

enum class Outcome : std::uint8_t { done, stopped };  ///< exit status 0 and 75

/// Trains, or continues, the run that `config` describes. Collective over the world. A file `stop` in run.dir
/// stops it as request_stop() does; it is removed then.
/// @param resolved the configuration as an ini file, written into the run folder and into checkpoints
/// @throws UserError and CommonError on every rank alike
Outcome train(World& world, const Config& config, const std::string& resolved, const Log& log);

struct Evaluation {
  double loss = 0;        ///< mean over valid labels; not a number if there are none
  double perplexity = 0;  ///< exp(loss)
  std::int64_t tokens = 0;
};

/// Loss of a model (Hugging Face folder or checkpoint) over all samples of a token file. Collective.
Evaluation evaluate(World& world, const std::filesystem::path& weights, const std::filesystem::path& data,
                    std::int64_t seq_len, std::int64_t micro_batch, int threads, const Log& log);

inline constexpr std::int64_t kMostTokensToGenerate = 1'000'000;

struct GenerateOptions {
  std::string prompt;
  std::int64_t max_tokens = 128;
  double temperature = 1.0;  ///< 0: the most likely token
  double top_p = 1.0;
  std::uint64_t seed = 0;
  int threads = 0;
};

/// Continues the prompt; `emit` gets each piece of text on rank 0 as it is made. Collective. Returns the
/// whole text.
std::string generate(World& world, const std::filesystem::path& weights, const GenerateOptions& options,
                     const std::function<void(const std::string&)>& emit, const Log& log);

/// Requests a clean stop, as SIGUSR1, SIGTERM and SIGINT do: train() saves at the next step and returns
/// Outcome::stopped.
void request_stop();

}  // namespace llampi
