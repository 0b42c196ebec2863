// SPDX-License-Identifier: Apache-2.0
// Documents by their lengths: attention is launched for documents of similar length together, since a launch
// takes time and memory as if all of its documents were as long as the longest that it is made for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

namespace llampi::device {

/// How many documents a micro-batch has at most of each class. The limits of a class are four times those of
/// the one before.
struct LengthClasses {
  static constexpr int kCount = 13;
  std::array<std::int64_t, kCount> documents{};

  /// Tokens of the longest document of class c: 128, 512, 2048, ...
  static constexpr std::int64_t longest(int c) { return std::int64_t{128} << (2 * c); }
  /// The class of a document of `length` tokens, at most 2^31.
  static constexpr int of(std::int64_t length) {
    int c = 0;
    while (longest(c) < length) ++c;
    return c;
  }
  /// False: the documents have not been counted, so that there may be any number of each.
  bool counted() const { return *this != LengthClasses{}; }

  auto operator<=>(const LengthClasses&) const = default;
};

/// What operations are issued for: the most that a micro-batch has of each.
struct BatchCounts {
  std::int64_t documents = 0;
  LengthClasses lengths = {};     ///< documents of each class
  std::int64_t valid_labels = 0;  ///< or more, see HostBatch::counts(); 0: they have not been counted

  /// So that they are enough for the others too.
  void raise_to(const BatchCounts& others) {
    documents = std::max(documents, others.documents);
    valid_labels = std::max(valid_labels, others.valid_labels);
    for (std::size_t c = 0; c < lengths.documents.size(); ++c)
      lengths.documents[c] = std::max(lengths.documents[c], others.lengths.documents[c]);
  }
  bool are_enough_for(const BatchCounts& others) const {
    BatchCounts raised = *this;
    raised.raise_to(others);
    return raised == *this;
  }
  auto members() {
    return std::apply([this](auto&... of_class) { return std::tie(documents, valid_labels, of_class...); },
                      lengths.documents);
  }
  auto operator<=>(const BatchCounts&) const = default;
};

}  // namespace llampi::device
