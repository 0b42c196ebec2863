// SPDX-License-Identifier: Apache-2.0
// The ids and the loss mask of a conversation, piece by piece. Private to the library.
#pragma once

#include <string>
#include <string_view>

#include "llampi/tokenizer/chat_types.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::tokenizer {

/// What stands between two special tokens is encoded as one text, as words may begin with the space before
/// them. White space that belongs to one of the two (Tokenizer::strips) is left out.
class ChatWriter {
 public:
  explicit ChatWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void text(std::string_view text);
  /// A text that is learnt; only a special token follows.
  void learn(std::string_view text);
  void special(std::int32_t id, bool learnt = false);
  /// A special token where the tokenizer has one of this name, otherwise its name.
  void marker(std::string_view name);
  /// Ends the last text.
  EncodedChat finish();

 private:
  void add(std::string_view text);
  void end_text();
  std::size_t tokens_before(const std::vector<std::int32_t>& ids, std::size_t bytes) const;
  void append(std::span<const std::int32_t> ids, bool learnt);

  const Tokenizer& tokenizer_;
  EncodedChat result_;
  std::string text_;                             // since the last special token
  std::size_t learnt_from_ = std::string::npos;  // bytes of text_ before what is learnt
  bool strips_beginning_ = false;                // of text_, for the special token before it
};

}  // namespace llampi::tokenizer
