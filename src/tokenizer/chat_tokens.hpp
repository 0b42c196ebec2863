// SPDX-License-Identifier: Apache-2.0
// The special tokens of chat templates, and which texts of them are known. Private to the library.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "llampi/tokenizer/chat_types.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::tokenizer {

inline constexpr std::string_view kBos = "bos_token", kEos = "eos_token";

/// Those without which a format cannot be written, first the one that ends the assistant's turn: by name, or
/// kBos and kEos.
std::vector<std::string_view> special_tokens(ChatFormat format);

/// The id of one of them. kBos and kEos: what the tokenizer's files say, else what the models of this format
/// have.
std::optional<std::int32_t> find_token(const Tokenizer& tokenizer, ChatFormat format, std::string_view name);

/// Whether a chat template writes a token of this name.
bool is_chat_token(std::string_view name);

/// The same as find_token(), of a tokenizer that has it.
std::int32_t token_of(const Tokenizer& tokenizer, ChatFormat format, std::string_view name);

/// Outline of a text that models were published with, and the name of the template that it is.
struct PublishedTemplate {
  std::uint64_t fingerprint;
  std::string_view name;
};

std::span<const PublishedTemplate> published_templates();

}  // namespace llampi::tokenizer
