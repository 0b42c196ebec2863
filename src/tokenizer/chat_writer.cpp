// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/chat_writer.hpp"

#include <algorithm>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"

namespace llampi::tokenizer {

void ChatWriter::text(std::string_view text) {
  require(learnt_from_ == std::string::npos, "a text after what is learned");
  add(text);
}

void ChatWriter::learn(std::string_view text) {
  require(learnt_from_ == std::string::npos, "two texts to be learned");
  learnt_from_ = text_.size();
  add(text);
}

void ChatWriter::add(std::string_view text) {
  std::string storage;
  text_ += tokenizer_.takes_any_bytes() ? text : well_formed(text, storage);
}

void ChatWriter::special(std::int32_t id, bool learnt) {
  const auto strips = tokenizer_.strips(id);
  if (strips.before) text_.resize(text_.size() - trailing_space(text_));
  end_text();
  append({&id, 1}, learnt);
  strips_beginning_ = strips.behind;
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
  if (std::exchange(strips_beginning_, false)) {
    const auto bytes = leading_space(text_);
    text_.erase(0, bytes);
    if (learnt_from_ != std::string::npos) learnt_from_ -= std::min(learnt_from_, bytes);
  }
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
  if (bytes == 0) return 0;
  const std::string_view beginning = std::string_view(text_).substr(0, bytes);
  std::string spelled;  // by the ids, as far as a space more than the beginning
  std::vector<std::size_t> ends;
  for (const auto id : ids) {
    spelled += tokenizer_.bytes_of(id);
    ends.push_back(spelled.size());
    if (spelled.size() > bytes + 1) break;
  }
  const auto within = [&](std::size_t end) {
    return static_cast<std::size_t>(std::ranges::upper_bound(ends, end) - ends.begin());
  };
  if (spelled.starts_with(beginning)) return within(bytes);
  if (spelled.starts_with(' ') && std::string_view(spelled).substr(1).starts_with(beginning))
    return within(bytes + 1);  // a space was put before the text
  // A normalizer has changed the beginning: as it does on its own.
  const auto start = result_.ids.empty() ? TextStart::beginning : TextStart::after_special;
  std::size_t changed = 0;
  for (const auto id : tokenizer_.encode(beginning, SpecialText::text, start))
    changed += tokenizer_.bytes_of(id).size();
  ends.clear();
  std::size_t end = 0;
  for (const auto id : ids) ends.push_back(end += tokenizer_.bytes_of(id).size());
  return within(changed);
}

void ChatWriter::append(std::span<const std::int32_t> ids, bool learnt) {
  result_.ids.insert(result_.ids.end(), ids.begin(), ids.end());
  result_.mask.insert(result_.mask.end(), ids.size(), learnt ? 1 : 0);
}

}  // namespace llampi::tokenizer
