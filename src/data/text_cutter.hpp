// SPDX-License-Identifier: Apache-2.0
// Long texts piece by piece: for memory that is bounded, and for several threads. Private to the library.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::data {

/// Cuts a text so that its pieces, encoded one by one, give the ids of the whole text: where words begin, and
/// where the tokenizer, asked about the words around the place, agrees. May be used by several threads.
class TextCutter {
 public:
  /// @param tokenizer must outlive it
  explicit TextCutter(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// How many bytes of `text` may be a piece, with the rest yet to come; 0 if no place for a cut was found.
  std::size_t cut(std::string_view text) const;
  /// Ids of the first piece of a text (all of it, perhaps), or of a later one.
  std::vector<std::int32_t> encode_first(std::string_view piece) const { return tokenizer_.encode(piece); }
  std::vector<std::int32_t> encode_next(std::string_view piece) const;

 private:
  bool may_cut(std::string_view text, std::size_t place) const;

  const tokenizer::Tokenizer& tokenizer_;
};

}  // namespace llampi::data
