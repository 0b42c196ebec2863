// SPDX-License-Identifier: Apache-2.0
// A tokenizer.model of SentencePiece, read and used.
#include "tokenizer/files.hpp"
#include "use_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view bytes) {
    llampi::fuzz::use(*llampi::tokenizer::parse_sentencepiece(bytes, "tokenizer.model"));
  });
}
