// SPDX-License-Identifier: Apache-2.0
// Texts and conversations to token files.
#pragma once

#include <cstdint>
#include <functional>

#include "llampi/core/log.hpp"
#include "llampi/data/tokenize_options.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::data {

/// Called periodically with the number of bytes of the input files, compressed perhaps, that are processed so far.
using TokenizeProgress = std::function<void(std::int64_t file_bytes)>;

/// Documents come out in the order of the inputs, conversations packed into rows, the same for any number of
/// threads. Files, lines and texts that are blank are left out with a warning; another one counts what is not
/// UTF-8, and becomes U+FFFD but with a tokenizer that takes any bytes. Needs no MPI, and memory for a few
/// pieces of the inputs (a piece is some lines, or a part of a text that may be cut there for this tokenizer;
/// all of it if there is no such place) and some 40 bytes per document. The outputs appear when they are
/// complete.
/// @throws UserError, with file and line, for what cannot be used (lines that are malformed; files that are
/// compressed otherwise than by gzip or zstd, UTF-16, binary, or in large part not UTF-8, unless the tokenizer takes any bytes); if there is
/// no document for one of the outputs, or if one cannot be written
TokenizeStatistics tokenize(const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options,
                            const Log& log = {}, const TokenizeProgress& progress = {});

}  // namespace llampi::data
