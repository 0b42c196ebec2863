// SPDX-License-Identifier: Apache-2.0
// What llampi tokenize says at the end.
#pragma once

#include <string>

#include "llampi/data/tokenize.hpp"

namespace llampi::cli {

/// Lines, each with its end.
std::string tokenize_table(const tokenizer::Tokenizer& tokenizer, const data::TokenizeOptions& options,
                           const data::TokenizeStatistics& done, double seconds);
/// One object.
std::string tokenize_json(const data::TokenizeOptions& options, const data::TokenizeStatistics& done,
                          double seconds);

}  // namespace llampi::cli
