// SPDX-License-Identifier: Apache-2.0
// The words of an enumeration: one table, from which a value is read, printed, listed in a help text and
// named in an error. Define next to the enumeration, in its namespace,
//
//   constexpr auto word_table(Colour) {
//     return std::to_array<Word<Colour>>({{Colour::red, "red"}, {Colour::green, "green"}});
//   }
//
// with every value once. Nothing falls through to a default: what is not in the table is an error or nothing.
#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <string_view>

#include "llampi/core/error.hpp"

namespace llampi {

template <class E>
struct Word {
  E value;
  const char* word;
};

template <class E>
concept HasWords = requires(E value) {
  { word_table(value)[0].value } -> std::convertible_to<E>;
};

/// @throws Error for a value that is not one of the enumeration's
template <HasWords E>
const char* word_of(E value) {
  for (const auto& entry : word_table(value)) {
    if (entry.value == value) return entry.word;
  }
  throw Error("internal error: a value without a word");
}

/// The value that has this word, spelled exactly so.
template <HasWords E>
std::optional<E> from_word(std::string_view word) {
  for (const auto& entry : word_table(E{})) {
    if (entry.word == word) return entry.value;
  }
  return std::nullopt;
}

}  // namespace llampi
