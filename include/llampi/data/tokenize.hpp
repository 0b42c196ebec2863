// Text files to a token file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "llampi/core/log.hpp"
#include "llampi/data/tokenizer.hpp"

namespace llampi {

struct TokenizeStatistics {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;  ///< of text
};

/// Each input, in the order given, becomes one document; empty ones are left out with a warning. Needs no
/// MPI, and memory for one piece of a text (for a tokenizer that cannot work piece by piece: for the longest
/// text). `output` appears when it is complete.
/// @throws UserError if an input is missing, a folder or not readable, if all are empty, or if `output`
/// cannot be written
TokenizeStatistics tokenize_text(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& inputs,
                                 const std::filesystem::path& output, const Log& log = {});

}  // namespace llampi
