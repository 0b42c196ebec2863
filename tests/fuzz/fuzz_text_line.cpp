// SPDX-License-Identifier: Apache-2.0
// A line of JSONL with a text.
#include "fuzz.hpp"
#include "llampi/data/json_lines.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view line) {
    const auto text = llampi::data::parse_text_line(line, "text");
    llampi::fuzz::expect(text.size() <= line.size(), "a text, which may be empty, is part of its line");
  });
}
