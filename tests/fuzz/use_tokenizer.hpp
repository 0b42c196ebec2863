// SPDX-License-Identifier: Apache-2.0
// What a tokenizer that was accepted must bear.
#pragma once

#include <algorithm>
#include <set>

#include "fuzz.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::fuzz {

/// What stands before a text and ends a document.
inline void check_ends(const tokenizer::Tokenizer& tokenizer) {
  for (const auto id : {tokenizer.begin(), tokenizer.end()}) {
    expect(!id || (*id >= 0 && *id < tokenizer.vocabulary()), "begin and end lie in the vocabulary");
    expect(!id || tokenizer.is_special(*id), "begin and end do not come out of a text");
  }
}

/// Texts to ids and back; a few tokens one by one. What a tokenizer makes of a text is its own affair, but
/// ids lie in its vocabulary, and special ones do not come out of a text that may not name them. The token
/// for what is unknown does, and may be special.
inline void use(const tokenizer::Tokenizer& tokenizer) {
  constexpr std::string_view kText = "Hello  wörld <s></s> <|eot_id|><end>\n\t 12345 \xff\u2581 ab cab";
  const std::int64_t vocabulary = tokenizer.vocabulary();
  for (const auto special : {tokenizer::SpecialText::tokens, tokenizer::SpecialText::text}) {
    const auto ids = tokenizer.encode(kText, special);
    std::set<std::int32_t> special_ids;
    for (const auto id : ids) {
      expect(id >= 0 && id < vocabulary, "ids lie in the vocabulary");
      if (tokenizer.is_special(id)) special_ids.insert(id);
    }
    if (special == tokenizer::SpecialText::text)
      expect(special_ids.size() <= 1, "no special token comes out of a text");
    static_cast<void>(tokenizer.decode(ids));
  }
  for (std::int64_t id = 0; id < std::min<std::int64_t>(vocabulary, 300); ++id)
    static_cast<void>(tokenizer.bytes_of(static_cast<std::int32_t>(id)));
  check_ends(tokenizer);
}

}  // namespace llampi::fuzz
