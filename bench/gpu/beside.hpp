// SPDX-License-Identifier: Apache-2.0
// Results of other programs beside ours, and what the figures are to be.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/options.hpp"

namespace llampi::bench {

/// A row of results from the log that llmq writes (--log-file): the model, the step and its times, without the
/// first two steps. What its log does not say, whether it was deterministic, the options say.
/// @throws UserError if the file cannot be read or holds no steps
nlohmann::json row_of_llmq(const std::string& file, const Options& options);

/// A line for each figure that a step is to reach beside llmq and compiled PyTorch: what was measured, and
/// whether that is enough. Rows count that differ in the program alone: of the same GPU and layers, with as many
/// sequences in a step and gradients in bfloat16. Equal rows count as their median.
std::string verdicts(const std::vector<nlohmann::json>& rows);

}  // namespace llampi::bench
