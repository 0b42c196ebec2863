// SPDX-License-Identifier: Apache-2.0
// Lines of JSONL files: one JSON object per line.
#pragma once

#include <string>
#include <string_view>

#include "llampi/tokenizer/chat.hpp"

namespace llampi::data {

/// The text under `field`, which may be empty. @throws UserError that says what is wrong with the line: it is
/// not valid JSON or not UTF-8, no object, or the field is missing or no string
std::string parse_text_line(std::string_view line, const std::string& field);

/// `{"messages": [{"role": "system"|"user"|"assistant", "content": TEXT, "weight": 0|1}, ...]}`, where the
/// weight (of the assistant's messages; optional) is 1 to train on the message, 0 to mask it; or `{"prompt": TEXT,
/// "completion": TEXT}`, one message of the user and one of the assistant, whose weight the line may have; or both are lists
/// of messages, and those of the prompt have weight 0. The keys
/// "system" (next to the prompt) and "reasoning_content" (of the assistant) are read, too; others are ignored, but for
/// tools and calls of them. null counts as missing.
/// @throws UserError that says what is wrong with the line: as above, or an unknown role, or an empty message of
/// user or assistant
tokenizer::Conversation parse_conversation(std::string_view line);

}  // namespace llampi::data
