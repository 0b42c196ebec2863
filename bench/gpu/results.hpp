// SPDX-License-Identifier: Apache-2.0
// A result as a line of JSON, and a file of them as tables. torch_llama.py reads and writes the same lines.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "gpu/machine.hpp"
#include "gpu/products.hpp"
#include "gpu/steps.hpp"

namespace llampi::bench {

struct Measured {
  std::int64_t layers = 0;
  std::int64_t parameters = 0;
  int ranks = 1;
  StepTimes steps;
  std::optional<Profile> profile;
  std::optional<Limits> limits;
};

nlohmann::json to_json(const Options& options, const Machine& machine, const Measured& measured);

/// One Markdown table of all results in the file, and what they say of kernel classes and products.
/// @throws UserError if the file cannot be read
std::string tables(const std::string& file);

}  // namespace llampi::bench
