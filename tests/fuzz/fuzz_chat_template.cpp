// SPDX-License-Identifier: Apache-2.0
// The chat template of somebody's folder: known or not, and what stands for a known one is known again.
#include "fuzz.hpp"
#include "llampi/tokenizer/chat.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view text) {
    const auto known = llampi::tokenizer::recognise_template(std::string(text));
    if (!known) return;
    const auto again = llampi::tokenizer::recognise_template(known->text);
    llampi::fuzz::expect(
        again && again->format == known->format && again->default_system == known->default_system,
        "what is exported is the same template");
  });
}
