// SPDX-License-Identifier: Apache-2.0
// Sums of gradients in the order of comm::tree_left(), while their terms come one after another: a binary counter.
#pragma once

#include <algorithm>
#include <vector>

namespace llampi::fsdp {

/// The partial sums of one unit, each in a buffer of its own, numbered from 0 on. For n terms there are at most
/// floor(log2 n) + 1 at a time, and the sum is in buffer 0 in the end.
class PartialSums {
 public:
  /// buffer `to` += buffer `from`, which is free then
  struct Addition {
    int from, to;
  };
  struct Term {
    int buffer = 0;
    bool adds = false;  ///< to what is in the buffer, which holds the term before it
  };

  /// Where the next term is written, in a buffer of its own.
  int begin_term() const { return free_buffer(0); }
  /// The buffer number `number`, from 0 on, of those that hold no sum.
  int free_buffer(int number) const {
    for (int buffer = 0;; ++buffer) {
      if (std::ranges::find(sums_, buffer, &Sum::buffer) != sums_.end()) continue;
      if (number-- == 0) return buffer;
    }
  }
  /// Likewise, or added where the term before it waits for nothing but this one.
  Term begin_added_term() const {
    if (!sums_.empty() && sums_.back().level == 0) return {sums_.back().buffer, true};
    return {begin_term(), false};
  }

  /// The term is there: what can be added now, in order.
  std::vector<Addition> end_term(const Term& term) {
    if (term.adds) {
      ++sums_.back().level;
    } else {
      sums_.push_back({term.buffer, 0});
    }
    std::vector<Addition> additions;
    while (sums_.size() > 1 && sums_[sums_.size() - 2].level == sums_.back().level)
      additions.push_back(join_last());
    return additions;
  }

  /// There are no more terms.
  std::vector<Addition> end() {
    std::vector<Addition> additions;
    while (sums_.size() > 1) additions.push_back(join_last());
    sums_.clear();
    return additions;
  }

 private:
  struct Sum {
    int buffer, level;  ///< of 2^level terms
  };

  Addition join_last() {
    const Sum last = sums_.back();
    sums_.pop_back();
    ++sums_.back().level;
    return {last.buffer, sums_.back().buffer};
  }

  std::vector<Sum> sums_;  ///< each of more terms than those behind it
};

}  // namespace llampi::fsdp
