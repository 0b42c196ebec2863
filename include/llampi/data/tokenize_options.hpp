// SPDX-License-Identifier: Apache-2.0
// How texts and conversations become token files, and what came of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "llampi/core/words.hpp"
#include "llampi/tokenizer/chat_types.hpp"

namespace llampi::data {

enum class InputFormat : std::uint8_t {
  text,   ///< each file is one document
  jsonl,  ///< each line is one, {"text": ...}
  chat,   ///< each line is one, as parse_conversation() reads it
};
constexpr auto word_table(InputFormat) {
  return std::to_array<Word<InputFormat>>(
      {{InputFormat::text, "text"}, {InputFormat::jsonl, "jsonl"}, {InputFormat::chat, "chat"}});
}

/// What becomes of a text that seems to be JSON lines.
enum class JsonAsText : std::uint8_t { refuse, warn };

/// What becomes of a line that cannot be used, and of a file that is not text.
enum class OnError : std::uint8_t { refuse, skip };
constexpr auto word_table(OnError) {
  return std::to_array<Word<OnError>>({{OnError::refuse, "refuse"}, {OnError::skip, "skip"}});
}

/// What becomes of a conversation that is longer than a row.
enum class TooLong : std::uint8_t {
  cut,     ///< it begins a row of its own and goes on in the next
  drop,    ///< it is left out, and counted
  refuse,  ///< UserError
};
constexpr auto word_table(TooLong) {
  return std::to_array<Word<TooLong>>(
      {{TooLong::cut, "cut"}, {TooLong::drop, "drop"}, {TooLong::refuse, "refuse"}});
}

enum class LossOn : std::uint8_t { assistant, all };
constexpr auto word_table(LossOn) {
  return std::to_array<Word<LossOn>>({{LossOn::assistant, "assistant"}, {LossOn::all, "all"}});
}

struct TokenizeOptions {
  InputFormat format = InputFormat::text;
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  bool overwrite = false;  ///< outputs replace any file; if not, only token files that llampi wrote
  OnError on_error = OnError::refuse;
  int threads = 0;  ///< 0: one per core

  JsonAsText json_as_text = JsonAsText::warn;  ///< of format text

  // Of text and jsonl.
  std::string text_field = "text";
  bool begin = true, end = true;  ///< the tokenizer's tokens around each document, where it has them

  // Of chat. Conversations are packed into rows of seq_len tokens.
  tokenizer::ChatTemplate chat_template = {};
  LossOn loss = LossOn::assistant;
  std::int64_t seq_len = 0;
  TooLong too_long = TooLong::cut;

  /// Part of the documents, drawn by (seed, number of the document), that goes to a file of its own. Lines that are
  /// skipped or dropped have a number; blank ones, and files that are skipped, have none.
  double held_out = 0;
  std::filesystem::path held_out_output;
  std::uint64_t seed = 0;
};

/// What is in one token file.
struct OutputStatistics {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;   ///< of the documents
  std::int64_t trained = 0;  ///< of these tokens, those that are labels
  std::int64_t longest = 0;  ///< document, in tokens
  // Of conversations.
  std::int64_t rows = 0;
  std::int64_t padding = 0;  ///< tokens that fill rows
  std::int64_t cut = 0;
};

struct TokenizeStatistics {
  OutputStatistics output, held_out;
  std::int64_t files = 0;
  std::int64_t bytes = 0;        ///< of text in the documents
  std::int64_t input_bytes = 0;  ///< of the files, unpacked
  std::int64_t skipped = 0;      ///< lines that could not be used, and files that are not text
  std::int64_t empty = 0;        ///< files, lines and texts without anything but white space; left out
  std::int64_t ill_formed = 0;   ///< places in texts that are not UTF-8
  std::int64_t ill_formed_documents = 0;
  std::int64_t dropped = 0;  ///< conversations that were too long
};

}  // namespace llampi::data
