// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the GPU's attention, and the pieces in which that memory lets it be computed: plain C++,
// for the plan and for the device alike.
//
// cuDNN's deterministic gradients on Ampere and Hopper keep dP, the gradient of the probabilities, for all of
// a launch: heads x sequences x longest^2 numbers of 16 bits. Where the room for it is less, they are
// launched in pieces: some of the sequences, or one with some of its heads; never some of the query heads
// that share a key/value head, whose gradients are one sum. Each piece is as large as the others, so that one
// graph does all of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "llampi/core/integers.hpp"
#include "llampi/device/length_classes.hpp"
#include "llampi/device/operation_sizes.hpp"

namespace llampi::device::cuda {

/// Some of the sequences or documents of an attention, and some of its key/value heads with their queries.
struct AttentionPiece {
  std::int64_t sequences = 0;  ///< 0: not even the smallest piece has room
  std::int64_t key_value_heads = 0;
};

/// A launch for documents that are packed into one row. `longest` tokens at most, `documents` at most; more
/// of them take several launches, as do their heads.
struct DocumentLaunch {
  std::int64_t longest = 0;
  std::int64_t documents = 0;  ///< 0: there is no room for one key/value head of one
  std::int64_t key_value_heads = 0;
};

inline constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

/// Rows of queries and keys are stored in whole tiles.
inline constexpr std::int64_t whole_tiles(std::int64_t rows) { return (rows + 127) / 128 * 128; }

/// Bytes of dP for query heads of so many sequences.
inline constexpr std::int64_t dp_bytes(std::int64_t sequences, std::int64_t query_heads,
                                       std::int64_t longest) {
  return sequences * query_heads * whole_tiles(longest) * whole_tiles(longest) * 2;
}
inline constexpr std::int64_t dp_bytes(AttentionShape shape, AttentionPiece piece, std::int64_t longest) {
  return dp_bytes(piece.sequences, piece.key_value_heads * (shape.query_heads / shape.key_value_heads),
                  longest);
}

/// The largest divisor of `whole` for which `fits` holds; 0: none.
template <class Fits>
constexpr std::int64_t largest_divisor(std::int64_t whole, const Fits& fits) {
  for (std::int64_t parts = 1; parts <= whole; ++parts) {
    if (whole % parts == 0 && fits(whole / parts)) return whole / parts;
  }
  return 0;
}

/// The largest piece of `sequences` sequences of `longest` tokens whose dP fits into `attention_room` bytes: fewer
/// sequences first, then fewer heads of one.
inline constexpr AttentionPiece attention_piece(AttentionShape shape, std::int64_t sequences,
                                                std::int64_t longest, std::int64_t attention_room) {
  const auto fits = [&](AttentionPiece piece) { return dp_bytes(shape, piece, longest) <= attention_room; };
  const std::int64_t all = shape.key_value_heads;
  if (const auto some = largest_divisor(sequences, [&](std::int64_t n) { return fits({n, all}); }); some > 0)
    return {some, all};
  const auto heads = largest_divisor(all, [&](std::int64_t n) { return fits({1, n}); });
  return heads > 0 ? AttentionPiece{1, heads} : AttentionPiece{};
}

/// Packed documents of at most `longest` tokens: a launch for each class of lengths, with as many heads of a document as there is
/// room for, and as many documents of it as there is room for then and fit into `tokens`; the class of the longest is the last.
inline std::vector<DocumentLaunch> document_launches(AttentionShape shape, std::int64_t tokens,
                                                     std::int64_t longest, std::int64_t attention_room) {
  std::vector<DocumentLaunch> launches;
  for (int c = 0; c <= LengthClasses::of(longest); ++c) {
    const std::int64_t of_class = std::min(LengthClasses::longest(c), longest);
    const AttentionPiece one = attention_piece(shape, 1, of_class, attention_room);
    if (one.sequences == 0) {
      launches.push_back({.longest = of_class});
      continue;
    }
    const std::int64_t most = std::min(tokens / of_class, attention_room / dp_bytes(shape, one, of_class));
    const auto documents = std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(most, 1)));
    launches.push_back({of_class, static_cast<std::int64_t>(documents), one.key_value_heads});
  }
  return launches;
}

/// Tables of the documents of each launch: a length and four offsets for each document that there may be, for
/// those that fill the last launch of a class, and up to four more for each launch, of which there are at most
/// as many as documents of one token, each alone in a launch: eight entries of 36 bytes for a token.
inline constexpr std::int64_t document_tables_bytes(std::int64_t tokens) {
  return 8 * 36 * tokens + kMebibyte / 8;
}

/// cuDNN's kernels want log_sum_exp in another order, float32 [T, Hq], and tables of the documents; the own
/// kernels nothing.
inline constexpr std::int64_t attention_forward_bytes(AttentionShape shape, std::int64_t tokens) {
  return shape.query_heads * tokens * 4 + document_tables_bytes(tokens) + kMebibyte;
}

/// Own kernels: delta = rowsum(dout * out), float32 [Hq, T].
inline constexpr std::int64_t own_attention_backward_bytes(AttentionShape shape, std::int64_t tokens) {
  return shape.query_heads * tokens * 4;
}

/// cuDNN without dP: gradients by query head in float32, packed copies of k and v, gradients of k and v in
/// float32 where query heads share them, a copy of dqkv for documents that are launched apart, two float32
/// rows [Hq, T], and tables; what cuDNN 9.19 asks for, at most.
inline constexpr std::int64_t cudnn_attention_backward_bytes(AttentionShape shape, std::int64_t tokens) {
  const std::int64_t hq = shape.query_heads, hkv = shape.key_value_heads;
  const std::int64_t per_column = 6 * (hq + 2 * hkv) + (hq > hkv ? 8 * hq : 0) + 8 * hkv;
  return tokens * (shape.head_dim * per_column + 8 * hq) + document_tables_bytes(tokens) + kMebibyte;
}

/// cuDNN with dP, all but dP: gradients of k and v by query head where these share them, packed copies of k
/// and v, a copy of dqkv, float32 rows [Hq, T], and tables; what cuDNN 9.19 asks for, at most.
inline constexpr std::int64_t beside_dp_bytes(AttentionShape shape, std::int64_t tokens,
                                              std::int64_t longest) {
  const std::int64_t hq = shape.query_heads, hkv = shape.key_value_heads;
  const std::int64_t in_tiles = ceil_div(tokens, longest) * whole_tiles(longest);
  const std::int64_t per_column = 2 * (hq + 2 * hkv) + (hq > hkv ? 8 * hq : 0) + 8 * hkv;
  return in_tiles * (shape.head_dim * per_column + 12 * hq) + document_tables_bytes(tokens) + kMebibyte;
}

/// What the pieces of `tokens` tokens take for dP at most, be they whole sequences or packed documents; 0: no piece
/// of the longest fits.
inline std::int64_t dp_bytes_in_pieces(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                       std::int64_t attention_room) {
  const std::int64_t sequences = std::max<std::int64_t>(tokens / longest, 1);
  std::int64_t bytes = dp_bytes(shape, attention_piece(shape, sequences, longest, attention_room), longest);
  if (bytes == 0) return 0;
  for (const auto& launch : document_launches(shape, tokens, longest, attention_room))
    bytes = std::max(bytes, dp_bytes(shape, {launch.documents, launch.key_value_heads}, launch.longest));
  return bytes;
}

/// Enough for either: which kernels run is known on the GPU only.
/// @param attention_room bytes that dP may take; 0: deterministic gradients are left to native kernels where cuDNN
/// would need it
inline std::int64_t attention_backward_bytes(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                             std::int64_t attention_room) {
  const std::int64_t without =
      std::max(own_attention_backward_bytes(shape, tokens), cudnn_attention_backward_bytes(shape, tokens));
  const std::int64_t dp = dp_bytes_in_pieces(shape, tokens, longest, attention_room);
  return dp == 0 ? without : std::max(without, beside_dp_bytes(shape, tokens, longest) + dp);
}

}  // namespace llampi::device::cuda
