// SPDX-License-Identifier: Apache-2.0
#include "data/piece_encoder.hpp"

#include <algorithm>

#include "data/text_check.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/json_lines.hpp"
#include "llampi/tokenizer/chat.hpp"

namespace llampi::data {
namespace {

bool is_blank(std::string_view text) { return tokenizer::strip(text).empty(); }

}  // namespace

PieceEncoder::PieceEncoder(const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options)
    : tokenizer_(tokenizer), options_(options), cutter_(tokenizer) {
  if (options.begin && tokenizer.begin()) begin_.push_back(*tokenizer.begin());
  if (options.end && tokenizer.end()) end_.push_back(*tokenizer.end());
}

std::size_t PieceEncoder::cut(std::string_view text, bool first) const {
  if (options_.format == InputFormat::text) {
    const auto bytes = cutter_.cut(text);
    // A file of nothing but blanks is left out, however large it is.
    return first && is_blank(text.substr(0, bytes)) ? 0 : bytes;
  }
  return text.rfind('\n') + 1;  // npos + 1 is 0
}

EncodedPiece PieceEncoder::operator()(const Piece& piece) const {
  EncodedPiece out;
  out.input_bytes = static_cast<std::int64_t>(piece.text.size());
  out.file_bytes = piece.file_bytes;
  const std::string file = out.file = options_.inputs[piece.file].string();
  if (piece.first) check_head(out, piece);
  if (piece.first && piece.last && is_blank(without_mark(piece))) {
    leave_out(out, file);
  } else if (options_.format == InputFormat::text) {
    add_text(out, piece);
  } else {
    std::string_view rest = piece.text;
    for (auto number = piece.line; !rest.empty(); ++number) {
      const auto line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      const auto place = fmt::format("{}:{}", file, number);
      is_blank(line) ? leave_out(out, place) : add_line(out, line, place);
    }
  }
  return out;
}

void PieceEncoder::check_head(EncodedPiece& out, const Piece& piece) const {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(options_.inputs[piece.file], ignored)) return;
  const auto head = std::string_view(piece.text).substr(0, kHeadBytes);
  const auto problem = tokenizer_.takes_any_bytes() ? "" : why_no_text(head, options_.format);
  if (!problem.empty()) throw_user_error("{} {}", out.file, problem);
  out.json_in_pipe = options_.format == InputFormat::text && looks_like_json(out.file, head);
  if (out.json_in_pipe && options_.json_as_text == JsonAsText::refuse) refuse_json(out.file);
}

void PieceEncoder::add_ids(EncodedPiece& out, const std::vector<std::int32_t>& ids) const {
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
}

void PieceEncoder::add_text(EncodedPiece& out, const Piece& piece) const {
  if (piece.first) add_ids(out, begin_);
  add_ids(out, piece.first ? cutter_.encode_first(without_mark(piece)) : cutter_.encode_next(piece.text));
  out.text_bytes += out.input_bytes;
  out.ill_formed = static_cast<std::int64_t>(count_ill_formed(piece.text));
  if (!piece.last) return;
  add_ids(out, end_);
  out.documents.push_back({out.ids.size()});
}

/// A byte order mark that a file of text begins with is not a character of the text.
std::string_view PieceEncoder::without_mark(const Piece& piece) const {
  const bool may_be_mark =
      piece.first && (options_.format != InputFormat::text || !tokenizer_.takes_any_bytes());
  return may_be_mark ? without_byte_order_mark(piece.text) : piece.text;
}

void PieceEncoder::leave_out(EncodedPiece& out, const std::string& place) const {
  if (out.empty++ == 0) out.first_empty = place;
}

std::int64_t PieceEncoder::encode_line(std::string_view line, tokenizer::EncodedChat& document) const {
  if (options_.format == InputFormat::jsonl) {
    const auto text = parse_text_line(line, options_.text_field);
    if (is_blank(text)) return 0;
    document.ids = begin_;
    const auto ids = tokenizer_.encode(text);
    document.ids.insert(document.ids.end(), ids.begin(), ids.end());
    document.ids.insert(document.ids.end(), end_.begin(), end_.end());
    return static_cast<std::int64_t>(text.size());
  }
  const auto conversation = parse_conversation(line);
  const bool is_learned = options_.loss == LossOn::all ||
                          std::ranges::any_of(conversation, [](const tokenizer::Message& message) {
                            return message.role == tokenizer::ChatRole::assistant && message.trained;
                          });
  if (!is_learned) throw_user_error("there is no assistant message to learn from");
  document = tokenizer::encode_chat(tokenizer_, options_.chat_template, conversation);
  if (options_.loss == LossOn::all) {
    std::fill(document.mask.begin() + 1, document.mask.end(),
              std::uint8_t{1});  // nothing predicts the first token
  }
  std::int64_t bytes = 0;
  for (const auto& message : conversation) bytes += static_cast<std::int64_t>(message.content.size());
  return bytes;
}

void PieceEncoder::add_line(EncodedPiece& out, std::string_view line, const std::string& place) const {
  tokenizer::EncodedChat document;
  std::int64_t text_bytes = 0;
  try {
    text_bytes = encode_line(line, document);
  } catch (const UserError& error) {
    if (options_.on_error == OnError::refuse) {
      throw_user_error("{}: {}; fix the line, or skip bad lines with --on-error skip", place, error.what());
    }
    out.defects.push_back(fmt::format("{}: {}", place, error.what()));
    out.documents.push_back({out.ids.size(), false});
    return;
  }
  if (document.ids.empty()) return leave_out(out, place);
  if (options_.format == InputFormat::chat && std::ssize(document.ids) > options_.seq_len) {
    if (options_.too_long == TooLong::refuse) {
      throw_user_error(
          "{}: the conversation has {}, but a sequence has {}; give a larger --seq-len, or --too-long cut "
          "or drop",
          place, count(std::ssize(document.ids), "token"), options_.seq_len);
    }
    if (options_.too_long == TooLong::drop) {
      ++out.dropped;
      out.documents.push_back({out.ids.size(), false});
      return;
    }
  }
  add_ids(out, document.ids);
  out.mask.insert(out.mask.end(), document.mask.begin(), document.mask.end());
  out.documents.push_back({out.ids.size()});
  out.text_bytes += text_bytes;
}

}  // namespace llampi::data
