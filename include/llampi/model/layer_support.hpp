// SPDX-License-Identifier: Apache-2.0
// Small helpers with which a layer, of Llama or of a model of your own, reads what it is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/device/operations.hpp"
#include "llampi/model/model.hpp"

namespace llampi::model {

/// The entries of a list that must have exactly N, to be bound to names:  const auto [q, k, v] =
/// take<3>(c.parameters);
template <std::size_t N, class T>
std::array<T, N> take(std::span<const T> list) {
  require(list.size() == N, "a layer was given another number of tensors than its spec asks for");
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return std::array<T, N>{list[I]...}; }
  (std::make_index_sequence<N>());
}

/// Matrices of equal width that are contiguous in memory, as one matrix; empty if all of them are
/// (gradients of frozen weights).
inline Tensor stacked(std::span<const Tensor> parts) {
  const bool empty = !parts.front();
  for (const Tensor& part : parts)
    require(!part == empty, "some of the stacked matrices are empty, others are not");
  if (empty) return {};
  Tensor whole = parts.front();
  whole.rows = 0;
  for (const Tensor& part : parts) {
    require(part.dtype == whole.dtype && part.cols == whole.cols,
            "stacked matrices differ in dtype or width");
    require(part.data == static_cast<std::byte*>(whole.data) + whole.bytes(),
            "stacked matrices have a gap between them");
    whole.rows += part.rows;
  }
  return whole;
}

inline Tensor stacked(std::initializer_list<Tensor> parts) {
  return stacked(std::span(parts.begin(), parts.size()));
}

/// Whether the gradient of stacked matrices is overwritten or added to: the same for all of them, since it is
/// one product.
inline Accumulate alike(std::initializer_list<Accumulate> parts) {
  for (const Accumulate part : parts) {
    require(part == *parts.begin(), "gradients of stacked matrices are accumulated differently");
  }
  return *parts.begin();
}

/// The documents of a batch; each has at most max_seqlen tokens.
inline device::Documents documents_of(const device::Batch& batch, std::int64_t max_seqlen) {
  return {.cu_seqlens = batch.cu_seqlens,
          .positions = batch.positions,
          .count = batch.documents,
          .max_seqlen = max_seqlen,
          .lengths = batch.lengths};
}

/// A saved tensor that backward() can make again. @param bytes BufferSpec::recomputation_bytes
inline BufferSpec recomputed(BufferSpec spec, std::int64_t bytes = 0) {
  spec.recomputed = true;
  spec.recomputation_bytes = bytes;
  return spec;
}

/// Memory for at least this many bytes.
inline BufferSpec workspace_spec(std::int64_t bytes, DType dtype) {
  return {"workspace", 1, (bytes + size_of(dtype) - 1) / size_of(dtype), dtype};
}

/// Parameters that are read both in forward() and in backward().
inline std::vector<LayerSpec::Use> read_in_both(const std::vector<int>& parameters) {
  std::vector<LayerSpec::Use> uses;
  for (const int parameter : parameters) uses.push_back({.parameter = parameter});
  return uses;
}

}  // namespace llampi::model
