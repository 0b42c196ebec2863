// SPDX-License-Identifier: Apache-2.0
// What the readers of weights share: sizes, and the comparison of a file's tensors with the model's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi::checkpoint {

/// "[331, 80]"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// "a, b, c, d, e and 3 more": the first few by name.
std::string names_text(const std::vector<std::string>& names);

/// @param source what holds `found`, for the message
/// @throws UserError, one sentence with all missing, unexpected and misshaped names (the first few of each by
/// name)
void require_same_tensors(const std::string& source, const std::vector<TensorInfo>& expected,
                          const std::vector<TensorInfo>& found);

/// Checks that each piece lies in its tensor, has memory, and is of a dtype that files can be converted to
/// and from. @throws Error
void require_valid_pieces(const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces);

}  // namespace llampi::checkpoint
