// SPDX-License-Identifier: Apache-2.0
// Tensors in parts that fit a buffer: of a rank's pieces, or dealt out over ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/schema.hpp"
#include "llampi/checkpoint/staging.hpp"

namespace llampi::checkpoint {

/// Elements [begin, begin + values.elements()) of a tensor, which fit the buffer.
struct Part {
  std::size_t role = 0;
  int tensor = 0;
  std::int64_t begin = 0;
  Tensor values = {};
};

/// Role by role.
inline std::vector<Part> parts_of(const std::vector<TensorPiece>& pieces, const Staging& staging) {
  std::vector<Part> parts;
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    for (const auto& piece : pieces) {
      staging.in_parts(piece.*kRoles[role].values, [&](const Tensor& values, std::int64_t begin) {
        parts.push_back({role, piece.tensor, piece.begin + begin, values});
      });
    }
  }
  return parts;
}

/// Deals out the parts of tensors, one tensor after another, over ranks like cards.
class TensorParts {
 public:
  /// @param most elements of a part
  TensorParts(int rank, int ranks, std::int64_t most) : rank_(rank), ranks_(ranks), most_(most) {}

  /// Calls visit(begin, count) for each part of the next tensor, of so many elements, that is this rank's.
  template <class Visitor>
  void next(std::int64_t elements, const Visitor& visit) {
    for (std::int64_t begin = 0; begin < elements; begin += most_) {
      if (dealt_++ % ranks_ == rank_) visit(begin, std::min(most_, elements - begin));
    }
  }

 private:
  int rank_, ranks_;
  std::int64_t most_;
  std::int64_t dealt_ = 0;
};

}  // namespace llampi::checkpoint
