// SPDX-License-Identifier: Apache-2.0
// The files beside a tokenizer's own: the input is each of them in turn.
#include "llampi/tokenizer/chat.hpp"
#include "tokenizer/files.hpp"
#include "use_tokenizer.hpp"

namespace {

using namespace llampi;

constexpr std::string_view kTokenizer = R"({"version": "1.0", "added_tokens": [{"id": 4, "content": "<end>",
  "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const auto file : {&llampi::tokenizer::TokenizerNeighbours::tokenizer_config,
                          &llampi::tokenizer::TokenizerNeighbours::special_tokens_map,
                          &llampi::tokenizer::TokenizerNeighbours::generation_config,
                          &llampi::tokenizer::TokenizerNeighbours::config,
                          &llampi::tokenizer::TokenizerNeighbours::added_tokens,
                          &llampi::tokenizer::TokenizerNeighbours::chat_template}) {
    fuzz::refuse_or_accept(data, size, [&](std::string_view text) {
      const auto tokenizer = llampi::tokenizer::parse_tokenizer_json(kTokenizer, "tokenizer.json");
      llampi::tokenizer::TokenizerNeighbours files;
      files.*file = llampi::tokenizer::TokenizerNeighbours::File{"neighbour.json", std::string(text)};
      apply_neighbours(*tokenizer, files);
      fuzz::check_ends(*tokenizer);
      if (const auto text = tokenizer->chat_template())
        static_cast<void>(llampi::tokenizer::recognise_template(text->text));
    });
  }
  return 0;
}
