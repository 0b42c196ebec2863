// SPDX-License-Identifier: Apache-2.0
// Names in a token file, for its reader and its writer.
#pragma once

#include <cstdint>
#include <filesystem>

#include "llampi/io/output_file.hpp"

namespace llampi::data::token_format {

inline constexpr char kFormat[] = "llampi-tokens";
inline constexpr std::int64_t kVersion = 1;

// Attributes of TokenFileNotes.
inline constexpr char kTokenizerHash[] = "tokenizer_hash";
inline constexpr char kOrdinaryHash[] = "ordinary_hash";
inline constexpr char kRowTokens[] = "seq_len";
inline constexpr char kPaddingTokens[] = "padding_tokens";
inline constexpr char kPaddingDocuments[] = "padding_documents";
inline constexpr char kLossTokens[] = "loss_tokens";
inline constexpr char kChatTemplate[] = "chat_template";

}  // namespace llampi::data::token_format

namespace llampi::data {

/// By what it says of itself.
bool is_llampi_token_file(const std::filesystem::path& path);
/// What a TokenFileWriter replaces.
io::OutputFile token_file_output(const std::filesystem::path& path, bool overwrite);

}  // namespace llampi::data
