// SPDX-License-Identifier: Apache-2.0
// Whether a file that is to be read as text is one. Private to the library.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "llampi/data/tokenize_options.hpp"

namespace llampi::data {

/// So much of a file is looked at.
inline constexpr std::size_t kHeadBytes = std::size_t{1} << 16;

/// The beginning of a file, of a compressed one of what it holds; shorter if that is.
std::string read_head(const std::filesystem::path& path);

/// What is wrong with a file that begins like this, and what to do, as the end of a sentence that begins with
/// its name: compressed, UTF-16, binary, in large part not UTF-8. Empty: it may be text. Of lines only the
/// first two are said, as each bad one is reported by itself.
std::string why_no_text(std::string_view head, InputFormat format);

/// Whether a file holds JSON, a line or a file each: by its name and its first character, or by its first
/// lines, which are JSON objects; of one that is longer than the head, by its beginning.
bool looks_like_json(const std::filesystem::path& path, std::string_view head);

/// @param where "FILE" or "N of M inputs"
/// @throws UserError that says what --format to give
[[noreturn]] void refuse_json(const std::string& where);

/// Places that are not UTF-8, each of which tokenizers take for one U+FFFD.
std::size_t count_ill_formed(std::string_view text);

}  // namespace llampi::data
