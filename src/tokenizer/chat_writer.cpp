// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/chat_writer.hpp"

#include <algorithm>

#include "llampi/core/error.hpp"

namespace llampi::tokenizer {

void ChatWriter::text(std::string_view text) {
  require(learnt_from_ == std::string::npos, "a text after what is learned");
  text_ += text;
}

void ChatWriter::learn(std::string_view text) {
  require(learnt_from_ == std::string::npos, "two texts to be learned");
  learnt_from_ = text_.size();
  text_ += text;
}

void ChatWriter::special(std::int32_t id, bool learnt) {
  end_text();
  append({&id, 1}, learnt);
}

void ChatWriter::marker(std::string_view name) {
  const auto id = tokenizer_.find(name);
  if (id && tokenizer_.is_special(*id)) {
    special(*id);
  } else {
    text(name);
  }
}

EncodedChat ChatWriter::finish() {
  end_text();
  return std::move(result_);
}

void ChatWriter::end_text() {
  if (text_.empty()) {
    learnt_from_ = std::string::npos;
    return;
  }
  const auto start = result_.ids.empty() ? TextStart::beginning : TextStart::after_special;
  const auto ids = tokenizer_.encode(text_, SpecialText::text, start);
  const std::size_t before = learnt_from_ >= text_.size() ? ids.size() : tokens_before(ids, learnt_from_);
  append(std::span(ids).first(before), false);
  append(std::span(ids).subspan(before), true);
  text_.clear();
  learnt_from_ = std::string::npos;
}

/// How many of the ids of text_ stand for its first `bytes` bytes alone.
std::size_t ChatWriter::tokens_before(const std::vector<std::int32_t>& ids, std::size_t bytes) const {
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  for (const auto id : ids) ends.push_back(end += tokenizer_.bytes_of(id).size());
  if (end == text_.size() || end == text_.size() + 1) {  // with the space that was put before it
    const auto last = std::ranges::upper_bound(ends, bytes + (end - text_.size()));
    return static_cast<std::size_t>(last - ends.begin());
  }
  // The tokenizer changes texts: what the beginning alone is encoded to tells.
  const auto start = result_.ids.empty() ? TextStart::beginning : TextStart::after_special;
  const auto first = tokenizer_.encode(std::string_view(text_).substr(0, bytes), SpecialText::text, start);
  return static_cast<std::size_t>(std::ranges::mismatch(ids, first).in1 - ids.begin());
}

void ChatWriter::append(std::span<const std::int32_t> ids, bool learnt) {
  result_.ids.insert(result_.ids.end(), ids.begin(), ids.end());
  result_.mask.insert(result_.mask.end(), ids.size(), learnt ? 1 : 0);
}

}  // namespace llampi::tokenizer
