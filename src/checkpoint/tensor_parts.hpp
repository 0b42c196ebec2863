// SPDX-License-Identifier: Apache-2.0
// Tensors in parts that fit a buffer, which ranks share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llampi::checkpoint {

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
