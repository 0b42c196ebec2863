// SPDX-License-Identifier: Apache-2.0
// What a token file holds, in one line, so that a run can tell its data wherever the file lies.
#pragma once

#include <string>

#include "llampi/data/token_file.hpp"
#include "llampi/data/training_data.hpp"

namespace llampi::data {

/// "3000 tokens in 82 documents, crc32 1a2b3c4d, tokenizer bytes". The sum is over at most 64 parts of 4096
/// tokens with their masks, evenly spread, the first and the last included, and over as many starts of
/// documents: files that differ only between these parts, with equal token and document counts, look the same.
/// It does not depend on how the numbers are stored. @throws UserError if the file cannot be read
std::string describe_content(const TokenFile& file);
/// Of one file, that; of several, "3500 tokens in 85 documents of 2 files, crc32 ...", where the sum is over what this says of
/// each, and how often it is read. @throws UserError if one cannot be read
std::string describe_content(const TrainingData& data);

/// Such a line for people: "3,000 tokens in 82 documents, crc32 1a2b3c4d, tokenizer bytes".
std::string content_in_words(const std::string& content);
/// Whether two such lines are of the same tokens; of a tokenizer's name they say nothing.
bool same_content(const std::string& one, const std::string& other);
/// The tokenizer's name in such a line; empty if it has none.
std::string tokenizer_in(const std::string& content);

}  // namespace llampi::data
