// SPDX-License-Identifier: Apache-2.0
// A line of JSONL with a conversation.
#include <algorithm>

#include "fuzz.hpp"
#include "llampi/data/json_lines.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using llampi::tokenizer::ChatRole;
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view line) {
    const auto conversation = llampi::data::parse_conversation(line);
    const bool full =
        std::all_of(conversation.begin(), conversation.end(), [](const llampi::tokenizer::Message& message) {
          return message.role == ChatRole::system || !message.content.empty();
        });
    llampi::fuzz::expect(full && !conversation.empty(), "user and assistant say something");
  });
}
