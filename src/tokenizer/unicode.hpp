// SPDX-License-Identifier: Apache-2.0
// Unicode as Hugging Face's library has it, whatever version PCRE2 and utf8proc have. Private to the library.
#pragma once

#include <string>
#include <string_view>

namespace llampi::tokenizer {

/// `text`, which is UTF-8, for regular expressions with properties: itself, or a copy in `storage` in which a
/// character that is not in every version of Unicode is one that has the same properties. Positions stay.
std::string_view for_matching(std::string_view text, std::string& storage);

/// Normalization form C (UAX 15) of a text that is UTF-8: itself if it is normalized, otherwise in `storage`.
/// Characters that Unicode 9 does not have stay what they are, as in Hugging Face's library.
std::string_view compose(std::string_view text, std::string& storage);

}  // namespace llampi::tokenizer
