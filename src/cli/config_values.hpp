// SPDX-License-Identifier: Apache-2.0
// How those members of the configuration are written that are neither numbers nor words alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/option.hpp"
#include "llampi/train/config.hpp"

namespace llampi::cli {

/// "auto", "never", or a file.
Spelled spelled_resume(train::ResumeFrom& target);
/// "auto", "off", or a file.
Spelled spelled_tuning(train::TuningMode& target);
/// "random", a file or a folder.
Spelled spelled_weights(std::optional<std::string>& target);
/// "stop", "skip 3".
Spelled spelled_not_finite(train::NotFinitePolicy& target);
/// Separated by spaces.
Spelled spelled_list(std::vector<std::string>& target);
/// "node" (or empty), "4".
Spelled spelled_group_size(std::optional<int>& target);
/// "auto" for none, or as fsdp::to_string() writes it.
Spelled spelled_checkpointing(std::optional<fsdp::BlockCheckpointing>& target);
/// "auto" for none, or a number of MiB.
Spelled spelled_mebibytes(std::optional<std::int64_t>& target);
/// "auto" for none, or a number of sequences.
Spelled spelled_micro_batch(std::optional<std::int64_t>& target);
/// Empty or "0" for none, "3", "3-5".
Spelled spelled_steps(std::optional<train::StepRange>& target);
/// "1e11", "15T": a number of tokens, 0 or at least 1, with K, M, B or T for thousands to trillions.
Spelled spelled_tokens(double& target);

}  // namespace llampi::cli
