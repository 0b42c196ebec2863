// The files beside a tokenizer's own: the input is each of them in turn.
#include "data/tokenizer_files.hpp"
#include "llampi/data/chat.hpp"
#include "use_tokenizer.hpp"

namespace {

using namespace llampi;

constexpr std::string_view kTokenizer = R"({"version": "1.0", "added_tokens": [{"id": 4, "content": "<end>",
  "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const auto file : {&TokenizerNeighbours::tokenizer_config, &TokenizerNeighbours::special_tokens_map,
                          &TokenizerNeighbours::generation_config, &TokenizerNeighbours::config,
                          &TokenizerNeighbours::added_tokens, &TokenizerNeighbours::chat_template}) {
    fuzz::refuse_or_accept(data, size, [&](std::string_view text) {
      const auto tokenizer = parse_tokenizer_json(kTokenizer, "tokenizer.json");
      TokenizerNeighbours files;
      files.*file = TokenizerNeighbours::File{"neighbour.json", std::string(text)};
      apply_neighbours(*tokenizer, files);
      fuzz::check_ends(*tokenizer);
      if (const auto text = tokenizer->chat_template()) static_cast<void>(recognise_template(text->text));
    });
  }
  return 0;
}
