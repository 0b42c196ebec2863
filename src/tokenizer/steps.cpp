// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/steps.hpp"

#include <charconv>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"
#include "tokenizer/unicode.hpp"

namespace llampi::tokenizer {
namespace {

const ByteCharacters& byte_characters() {
  static const ByteCharacters characters;
  return characters;
}

/// Replacements may make a text longer, but steps that multiply it, one after the other, would not end.
class Room {
 public:
  explicit Room(std::size_t text_bytes) : text_bytes_(text_bytes), left_(kBytes + kPerByte * text_bytes) {}

  void take(std::size_t bytes) {
    if (bytes > left_) {
      throw_user_error("the replacements of the tokenizer make more than {} bytes of a text of {}",
                       kBytes + kPerByte * text_bytes_, text_bytes_);
    }
    left_ -= bytes;
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  static constexpr std::size_t kPerByte = 64;
  std::size_t text_bytes_;
  std::size_t left_;
};

std::string replace(const Replace& step, Matcher& matcher, std::string_view text, Room& room) {
  std::string result;
  std::size_t at = 0;
  const auto append = [&](std::string_view part) {
    room.take(part.size());
    result.append(part);
  };
  Matches matches(step.pattern, matcher, text);
  while (const auto match = matches.next()) {
    append(text.substr(at, match->begin - at));
    append(step.content);
    at = match->end;
  }
  append(text.substr(at));
  return result;
}

}  // namespace

ByteCharacters::ByteCharacters() {
  byte_of_.fill(-1);
  std::size_t other = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    byte_of_[printable ? static_cast<std::size_t>(byte) : other++] = static_cast<std::int16_t>(byte);
  }
}

std::optional<std::string> ByteCharacters::bytes(std::string_view text) const {
  std::string result;
  for (std::size_t at = 0; at < text.size(); at += character_bytes(text[at])) {
    const char32_t character = first_character(text.substr(at));
    if (character >= kCharacters || byte_of_[character] < 0) return std::nullopt;
    result.push_back(static_cast<char>(byte_of_[character]));
  }
  return result;
}

std::string normalize(const std::vector<Normalizer>& steps, Matcher& matcher, std::string_view text) {
  std::string result(text);
  for (const auto& step : steps) {
    if (result.empty()) break;
    if (const auto* change = std::get_if<Replace>(&step)) {
      Room room(text.size());
      result = replace(*change, matcher, result, room);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      result.insert(0, prepend->text);
    } else {
      std::string storage;
      if (compose(result, storage).data() == storage.data()) result = std::move(storage);
    }
  }
  return result;
}

/// Matches and what stands between them, in order.
std::optional<SplitPieces::Part> SplitPieces::part() {
  if (!found_) found_ = matches_.next();
  if (!found_ && at_ == text_.size()) return std::nullopt;
  const std::size_t begin = at_;
  if (found_ && found_->begin == begin) {
    const Span span = *std::exchange(found_, std::nullopt);
    at_ = span.end;
    return Part{span, !split_.invert};
  }
  at_ = found_ ? found_->begin : text_.size();
  return Part{{begin, at_}, split_.invert};
}

/// Whether the next part belongs to the piece of the last one.
bool SplitPieces::continues(bool match) const {
  switch (split_.behavior) {
    case Split::Behavior::merged_with_previous:
      return match && !last_match_;
    case Split::Behavior::merged_with_next:
      return !match && last_match_;
    case Split::Behavior::contiguous:
      return match == last_match_;
    case Split::Behavior::removed:
    case Split::Behavior::isolated:
      break;
  }
  return false;
}

std::optional<std::string_view> SplitPieces::next() {
  const auto text_of = [&](Span span) { return text_.substr(span.begin, span.end - span.begin); };
  while (const auto part = this->part()) {
    if (split_.behavior == Split::Behavior::removed && part->match) continue;
    if (piece_ && continues(part->match)) {
      piece_->end = part->span.end;
      last_match_ = part->match;
      continue;
    }
    const auto done = std::exchange(piece_, part->span);
    last_match_ = part->match;
    if (done && done->begin < done->end) return text_of(*done);
  }
  const auto done = std::exchange(piece_, std::nullopt);
  if (done && done->begin < done->end) return text_of(*done);
  return std::nullopt;
}

std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

namespace {

/// Each step takes the tokens and gives those for the next; what the last gives is put together.
struct Decoding {
  Matcher& matcher;
  std::vector<std::string> tokens;
  std::size_t first_bytes;  // of the tokens

  void operator()(const Replace& step) {
    Room room(first_bytes);
    for (auto& token : tokens) {
      if (!token.empty()) token = replace(step, matcher, token, room);
    }
  }

  void operator()(const DecodeByteLevel&) {
    std::string bytes;
    for (const auto& token : tokens) bytes += byte_characters().bytes(token).value_or(token);
    std::string storage;
    const std::string_view text = well_formed(bytes, storage);
    tokens.assign(1, std::string(text));
  }

  /// Bytes that follow each other are a text; if it is not UTF-8, each byte is U+FFFD.
  void operator()(const DecodeByteFallback&) {
    std::vector<std::string> result;
    std::string bytes;
    const auto end_bytes = [&] {
      if (bytes.empty()) return;
      if (!is_well_formed(bytes)) {
        const std::size_t count = bytes.size();
        bytes.clear();
        for (std::size_t i = 0; i < count; ++i) append_character(bytes, 0xFFFD);
      }
      result.push_back(std::exchange(bytes, {}));
    };
    for (auto& token : tokens) {
      if (const auto byte = fallback_byte(token)) {
        bytes.push_back(*byte);
      } else {
        end_bytes();
        result.push_back(std::move(token));
      }
    }
    end_bytes();
    tokens = std::move(result);
  }

  void operator()(const DecodeFuse&) {
    std::string whole;
    for (const auto& token : tokens) whole += token;
    tokens.assign(1, whole);
  }

  void operator()(const DecodeStrip& step) {
    std::string content;
    append_character(content, step.content);
    for (auto& token : tokens) {
      std::string_view text = token;
      for (std::size_t i = 0; i < step.start && text.starts_with(content); ++i)
        text.remove_prefix(content.size());
      for (std::size_t i = 0; i < step.stop && text.ends_with(content); ++i)
        text.remove_suffix(content.size());
      token = std::string(text);
    }
  }

  void operator()(const DecodeMetaspace& step) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string result;
      for (std::string_view rest = tokens[i]; !rest.empty(); rest.remove_prefix(character_bytes(rest[0]))) {
        if (first_character(rest) != step.replacement) {
          result.append(rest.substr(0, character_bytes(rest[0])));
        } else if (i > 0 || !step.drops_first) {
          result.push_back(' ');
        }
      }
      tokens[i] = std::move(result);
    }
  }
};

}  // namespace

std::string decode_tokens(const std::vector<Decoder>& steps, Matcher& matcher,
                          std::vector<std::string> tokens) {
  std::size_t bytes = 0;
  for (const auto& token : tokens) bytes += token.size();
  Decoding decoding{matcher, std::move(tokens), bytes};
  for (const auto& step : steps) std::visit(decoding, step);
  std::string text;
  for (std::size_t i = 0; i < decoding.tokens.size(); ++i) {
    if (steps.empty() && i > 0) text.push_back(' ');  // so Hugging Face's library where there is no decoder
    text += decoding.tokens[i];
  }
  return text;
}

std::string decode_token(const std::vector<Decoder>& steps, Matcher& matcher, std::string token) {
  const std::size_t bytes = token.size();
  for (const auto& step : steps) {
    if (std::holds_alternative<DecodeByteLevel>(step)) return byte_characters().bytes(token).value_or(token);
    if (const auto* change = std::get_if<Replace>(&step)) {
      Room room(bytes);
      if (!token.empty()) token = replace(*change, matcher, token, room);
    } else if (std::holds_alternative<DecodeByteFallback>(step)) {
      if (const auto byte = fallback_byte(token)) return std::string(1, *byte);
    } else if (const auto* metaspace = std::get_if<DecodeMetaspace>(&step)) {
      Decoding decoding{matcher, {std::move(token)}, bytes};
      decoding(DecodeMetaspace{metaspace->replacement, false});
      token = std::move(decoding.tokens[0]);
    }
  }
  return token;
}

}  // namespace llampi::tokenizer
