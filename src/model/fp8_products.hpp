// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits as a stage issues them: casts of what is multiplied, then products of what was cast.
#pragma once

#include "model/llama_operations.hpp"

namespace llampi::model {

/// A tensor in 8 bits: as it lies, for a product that sums over its columns; transposed, for one that sums over its
/// rows. Either may be empty.
struct Fp8Tensor {
  Tensor values, transposed;
  Tensor scale;  ///< float32 [1, 2]
};

/// Scratch memory as a matrix that needs no more than it: for what is not needed at the same time.
inline Tensor shaped(const Tensor& scratch, std::int64_t rows, std::int64_t cols) {
  require(rows * cols <= scratch.elements(), "a matrix is larger than its scratch memory");
  return {scratch.data, scratch.dtype, rows, cols};
}

inline BufferSpec fp8_scale_spec(std::string name) { return {std::move(name), 1, 2, DType::float32}; }
/// Of fp8_cast().
inline BufferSpec fp8_maximum_spec() { return {"maximum", 1, 1, DType::int32}; }

/// @param maximum for an operation that measures what it writes
/// @return the same
inline Tensor fp8_begin_maximum(const StageContext& c, const Tensor& maximum) {
  c.operations.run(device::op::Zero{.destination = maximum});
  return maximum;
}

/// @param maximum of `source`, measured by the operation that wrote it
inline void fp8_cast_measured(const StageContext& c, const Tensor& source, const Fp8Tensor& to,
                              const Tensor& maximum) {
  c.operations.run(device::op::Fp8Cast{.source = source,
                                       .maximum = maximum,
                                       .values = to.values,
                                       .transposed = to.transposed,
                                       .scale = to.scale,
                                       .counts = c.fp8_counts});
}

/// @param maximum scratch
inline void fp8_cast(const StageContext& c, const Tensor& source, const Fp8Tensor& to,
                     const Tensor& maximum) {
  c.operations.run(device::op::Fp8Maximum{.source = source, .maximum = fp8_begin_maximum(c, maximum)});
  fp8_cast_measured(c, source, to, maximum);
}

struct NormOutputs {
  Tensor y, inverse_rms;
};
/// norm(input), cast as it is measured.
inline void fp8_norm(const StageContext& c, double eps, const NormOutputs& normed, const Fp8Tensor& to,
                     const Tensor& maximum) {
  run_norm(c, eps, normed.y, normed.inverse_rms, fp8_begin_maximum(c, maximum));
  fp8_cast_measured(c, normed.y, to, maximum);
}

/// y = x weight^T (+ residual)
inline void fp8_forward(const StageContext& c, const Fp8Tensor& x, const Tensor& weight,
                        const Tensor& weight_scale, const Tensor& residual, const Tensor& y,
                        const Tensor& workspace) {
  c.operations.run(device::op::Fp8Product{.a = x.values,
                                          .a_scale = x.scale,
                                          .b = weight,
                                          .b_scale = weight_scale,
                                          .residual = residual,
                                          .y = y,
                                          .accumulate_y = Accumulate::no,
                                          .fast_accumulation = true,
                                          .workspace = workspace});
}

/// A linear map's backward pass; dweight may be empty.
struct Fp8Backward {
  Fp8Tensor dy;  ///< both forms
  Fp8Tensor x;   ///< transposed
  Fp8Weight weight;
  Tensor dx;
  Tensor dweight;
  Accumulate accumulate_dweight;
};

/// dx = dy weight, dweight (+)= dy^T x
inline void fp8_backward(const StageContext& c, const Fp8Backward& b, const Tensor& workspace) {
  c.operations.run(device::op::Fp8Product{.a = b.dy.values,
                                          .a_scale = b.dy.scale,
                                          .b = b.weight.transposed,
                                          .b_scale = b.weight.scale,
                                          .residual = {},
                                          .y = b.dx,
                                          .accumulate_y = Accumulate::no,
                                          .fast_accumulation = false,
                                          .workspace = workspace});
  if (!b.dweight) return;
  c.operations.run(device::op::Fp8Product{.a = b.dy.transposed,
                                          .a_scale = b.dy.scale,
                                          .b = b.x.transposed,
                                          .b_scale = b.x.scale,
                                          .residual = {},
                                          .y = b.dweight,
                                          .accumulate_y = b.accumulate_dweight,
                                          .fast_accumulation = false,
                                          .workspace = workspace});
}

/// The workspace of all three products of a linear map from `in` to `out`.
inline std::int64_t fp8_workspace(const device::OperationSizes& sizes, std::int64_t tokens, std::int64_t in,
                                  std::int64_t out) {
  return std::max({sizes.fp8_product_workspace(tokens, out, in), sizes.fp8_product_workspace(tokens, in, out),
                   sizes.fp8_product_workspace(out, in, tokens)});
}

}  // namespace llampi::model
