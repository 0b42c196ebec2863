// SPDX-License-Identifier: Apache-2.0
// What makes two Jinja texts the same template. Private to the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace llampi::tokenizer {

/// A chat template without what does not change what it renders: white space within its tags and trimmed
/// beside them (transformers' trim_blocks and lstrip_blocks), comments, the way strings are quoted and
/// escaped.
struct JinjaOutline {
  std::uint64_t fingerprint = 0;    ///< FNV-1a, 64 bits, of what is left; the two texts below stand for any
  std::string date = {};            ///< of the first `set date_string = "..."`
  std::string default_system = {};  ///< of the first string "<|im_start|>system\n...<|im_end|>\n"
};

JinjaOutline outline_of(std::string_view text);

}  // namespace llampi::tokenizer
