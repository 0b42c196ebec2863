// SPDX-License-Identifier: Apache-2.0
// Tokens that are recognised in a text before it is cut into words: special ones and others that were added
// to a vocabulary. Private to the library.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.hpp"

namespace llampi::tokenizer {

/// As in "added_tokens" of tokenizer.json.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  ///< only where no letter, mark, digit or underscore stands beside it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< and behind it
  bool normalized = false;   ///< looked for in the normalized text, and normalized itself
};

/// Finds the added tokens of a text, of those that start first the longest.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Of two with the same content the first counts.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  void mark_special(std::int32_t id);
  void add(AddedToken token);

  struct Piece {
    std::string_view text;
    const AddedToken* token;  ///< nullptr for what stands between tokens
  };
  /// The next piece of `text`, which is UTF-8, from `from` on; moves `from`. With `special_is_text` special
  /// ones are passed over. Nothing is left when `from` is the end of the text.
  class Pieces {
   public:
    Pieces(const AddedTokens& tokens, Matcher& matcher, std::string_view text, bool special_is_text)
        : tokens_(tokens), matcher_(matcher), text_(text), special_is_text_(special_is_text) {}
    std::optional<Piece> next();

   private:
    struct Found {
      const AddedToken* token;
      Span span;
    };
    std::optional<Found> find();
    const AddedTokens& tokens_;
    Matcher& matcher_;
    std::string_view text_;
    bool special_is_text_;
    std::size_t searched_ = 0;  // matches start at or after this byte
    std::size_t emitted_ = 0;   // pieces up to this byte were given
    std::optional<Found> found_;
  };

 private:
  const AddedToken* match_at(std::string_view text, std::size_t at) const;
  std::size_t next_candidate(std::string_view text, std::size_t at) const;
  bool is_single_word(Matcher& matcher, std::string_view text, Span span) const;

  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> starts_{};
  std::optional<char> only_start_;
  std::optional<Regex> word_;
};

}  // namespace llampi::tokenizer
