// SPDX-License-Identifier: Apache-2.0
// Tokenizers small enough to be understood at a glance.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::test {

/// Bytes, and behind them special tokens: the first of these ends a document.
class BytesAndSpecials : public tokenizer::Tokenizer {
 public:
  explicit BytesAndSpecials(std::vector<std::string> specials) : specials_(std::move(specials)) {}
  static BytesAndSpecials llama3() {
    return BytesAndSpecials(
        {"<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  }
  static BytesAndSpecials llama2() { return BytesAndSpecials({"</s>", "<s>"}); }

  std::string name() const override { return "bytes and specials"; }
  std::int64_t vocabulary() const override { return 256 + static_cast<std::int64_t>(specials_.size()); }
  std::vector<std::int32_t> encode(std::string_view text, tokenizer::SpecialText special,
                                   tokenizer::TextStart) const override {
    std::vector<std::int32_t> ids;
    while (!text.empty()) {
      const auto name = special == tokenizer::SpecialText::text
                            ? specials_.end()
                            : std::find_if(specials_.begin(), specials_.end(),
                                           [&](auto& s) { return text.starts_with(s); });
      ids.push_back(name == specials_.end() ? static_cast<unsigned char>(text.front()) : id_of(name));
      text.remove_prefix(name == specials_.end() ? 1 : name->size());
    }
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const auto id : ids) text += bytes_of(id);
    return text;
  }
  std::string bytes_of(std::int32_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id))
                    : specials_.at(static_cast<std::size_t>(id - 256));
  }
  std::optional<std::int32_t> find(std::string_view token) const override {
    const auto found = std::find(specials_.begin(), specials_.end(), token);
    if (found == specials_.end()) return {};
    return id_of(found);
  }
  bool is_special(std::int32_t id) const override { return id >= 256; }
  std::optional<std::int32_t> begin() const override {
    return specials_.size() > 1 ? std::optional(257) : std::nullopt;
  }
  std::optional<std::int32_t> end() const override {
    return specials_.empty() ? std::nullopt : std::optional(256);
  }

 private:
  std::int32_t id_of(std::vector<std::string>::const_iterator name) const {
    return 256 + static_cast<std::int32_t>(name - specials_.begin());
  }
  std::vector<std::string> specials_;
};

/// Words with the space before them, line ends and other white space, each a hash of its bytes; can only be
/// encoded.
class Words : public tokenizer::Tokenizer {
 public:
  enum class Start : std::uint8_t {
    plain,
    with_space
  };  ///< with_space: as if a space stood before each text
  explicit Words(Start start) : start_(start) {}

  std::string name() const override { return "words"; }
  std::int64_t vocabulary() const override { return 1 << 20; }
  std::vector<std::int32_t> encode(std::string_view text, tokenizer::SpecialText,
                                   tokenizer::TextStart = tokenizer::TextStart::beginning) const override {
    const std::string whole = (start_ == Start::with_space && !text.empty() ? " " : "") + std::string(text);
    std::vector<std::int32_t> ids;
    for (std::size_t begin = 0; begin < whole.size();) {
      std::size_t end = begin + 1;
      while (end < whole.size() && whole[end] > ' ' && whole[begin] >= ' ') ++end;
      std::uint32_t hash = 1;
      for (; begin < end; ++begin) hash = hash * 16777619U ^ static_cast<unsigned char>(whole[begin]);
      ids.push_back(static_cast<std::int32_t>(hash % (1U << 20)));
    }
    return ids;
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::string bytes_of(std::int32_t) const override { return {}; }
  std::optional<std::int32_t> find(std::string_view) const override { return {}; }
  bool is_special(std::int32_t) const override { return false; }
  std::optional<std::int32_t> begin() const override { return {}; }
  std::optional<std::int32_t> end() const override { return {}; }

 private:
  Start start_;
};

/// Stands for tokenizers whose ids depend on all that comes before: a text's only id is its number of bytes.
class WholeText : public tokenizer::Tokenizer {
 public:
  std::string name() const override { return "whole"; }
  std::int64_t vocabulary() const override { return std::int64_t{1} << 21; }
  std::vector<std::int32_t> encode(std::string_view text, tokenizer::SpecialText,
                                   tokenizer::TextStart) const override {
    return {static_cast<std::int32_t>(text.size())};
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::string bytes_of(std::int32_t) const override { return {}; }
  std::optional<std::int32_t> find(std::string_view) const override { return {}; }
  bool is_special(std::int32_t) const override { return false; }
  std::optional<std::int32_t> begin() const override { return {}; }
  std::optional<std::int32_t> end() const override { return {}; }
};

}  // namespace llampi::test
