// SPDX-License-Identifier: Apache-2.0
// Input files in pieces of bounded size. Private to the library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/io/input_file.hpp"

namespace llampi::data {

/// A part of an input file that is worked on at once.
struct Piece {
  std::size_t file = 0;         ///< number of the input
  std::int64_t line = 1;        ///< number of its first line in the file, from 1
  bool first = true;            ///< of the file
  bool last = true;             ///< of the file; it may be empty
  std::int64_t file_bytes = 0;  ///< read of the file for it, compressed perhaps
  std::string text;
};

/// The pieces of one file after the other, of compressed ones of what they hold. Memory: one piece.
class PieceReader {
 public:
  /// How many bytes of a text, of which more is to come, may be a piece; 0: more must be read first.
  /// @param first whether the text begins the file
  using Cut = std::function<std::size_t(std::string_view text, bool first)>;

  PieceReader(std::vector<std::filesystem::path> inputs, Cut cut);

  /// Nothing behind the last piece. @throws UserError if a file cannot be read
  std::optional<Piece> next();

 private:
  /// More of the file at the end of rest_; false if there is no more.
  bool read_more(std::size_t bytes);
  Piece take(std::size_t bytes);

  std::vector<std::filesystem::path> inputs_;
  Cut cut_;
  std::optional<io::InputFile> file_;
  std::size_t number_ = 0;
  std::int64_t line_ = 1;
  std::int64_t counted_ = 0;  // bytes of the file, in pieces that were given away
  bool first_ = true;
  std::string rest_;  // read, and not yet given away
};

}  // namespace llampi::data
