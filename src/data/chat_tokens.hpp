// The special tokens of chat templates. Private to the library.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "llampi/data/chat.hpp"

namespace llampi {

inline constexpr std::string_view kBos = "bos_token", kEos = "eos_token";

/// Those without which a format cannot be written, first the one that ends the assistant's turn: by name, or
/// kBos and kEos.
std::vector<std::string_view> special_tokens(ChatFormat format);

/// The id of one of them. kBos and kEos: what the tokenizer's files say, else what the models of this format
/// have.
std::optional<std::int32_t> find_token(const Tokenizer& tokenizer, ChatFormat format, std::string_view name);

/// The same, of a tokenizer that has it.
std::int32_t token_of(const Tokenizer& tokenizer, ChatFormat format, std::string_view name);

}  // namespace llampi
