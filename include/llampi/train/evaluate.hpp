// SPDX-License-Identifier: Apache-2.0
// The loss of a model over a token file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>

#include "llampi/comm/compute.hpp"
#include "llampi/core/log.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/fsdp/engine.hpp"

namespace llampi::train {

struct Evaluation {
  double loss = 0;        ///< mean over valid labels; not a number if there are none
  double perplexity = 0;  ///< exp(loss)
  std::int64_t tokens = 0;
};

struct EvaluateOptions {
  std::int64_t seq_len = 0;  ///< 0: that of the data's rows, or that with which the checkpoint was trained
  std::int64_t micro_batch = 1;
  comm::DeviceOptions compute = {};
  std::filesystem::path adapter = {};  ///< merged into the weights; empty: none
};

/// Loss of a model (Hugging Face folder or checkpoint) over all samples of a token file. Documents are masked from each
/// other unless the run that wrote the checkpoint had data.document_mask = false. Collective.
/// @throws UserError, also for a loss that is not finite
Evaluation evaluate(comm::World& world, const std::filesystem::path& weights,
                    const std::filesystem::path& data, EvaluateOptions options, const Log& log);

/// Of all labels of several files, from the loss of each.
Evaluation over_all(std::span<const Evaluation> files);

/// Loss over all samples of a file, dealt out over ranks and micro-batches; what is left over is filled up
/// with empty slots. Collective.
/// @param should_abort asked before each micro-batch; all ranks must give the same answer. If true, there is no
/// result
std::optional<Evaluation> evaluate_file(comm::World& world, fsdp::Engine& engine, const data::TokenFile& file,
                                        const data::BatchOptions& options,
                                        const std::function<bool()>& should_abort = {});

}  // namespace llampi::train
