// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits as a layer issues them: casts of what is multiplied, then products of what was cast.
#pragma once

#include "llampi/model/fp8_recipe.hpp"
#include "model/llama_operations.hpp"

namespace llampi::model {

/// A tensor in 8 bits: as it lies, for a product that sums over its columns; transposed, for one that sums over its
/// rows. Either may be empty.
struct Fp8Tensor {
  Tensor values, transposed;
  Tensor scale, transposed_scale;  ///< as op::Fp8Product takes them
};

/// Memory for scales, of Fp8Products::scale_spec(); where only one form of a tensor is made, for that one.
struct Fp8ScaleMemory {
  Tensor of_values, of_transposed;
};

/// Scratch memory as a matrix that needs no more than it: for what is not needed at the same time.
inline Tensor shaped(const Tensor& scratch, std::int64_t rows, std::int64_t cols) {
  require(rows * cols <= scratch.elements(), "a matrix is larger than its scratch memory");
  return {scratch.data, scratch.dtype, rows, cols};
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

/// What a layer issues, by one recipe.
class Fp8Products {
 public:
  Fp8Products(const LayerContext& context, const Fp8Recipe& recipe) : c_(context), recipe_(recipe) {}

  /// Of a matrix [rows, cols] at most, or of one form of it.
  static BufferSpec scale_spec(const Fp8Recipe& recipe, std::string name, std::int64_t rows,
                               std::int64_t cols) {
    const auto shape = device::fp8_scale_shape(scaling(recipe), rows, cols);
    return {std::move(name), shape.rows, shape.cols, DType::float32};
  }
  /// Scratch of casts.
  static BufferSpec maximum_spec(const Fp8Recipe& recipe) {
    return {"maximum", 1, in_blocks(recipe) ? 2 : 1, DType::int32};
  }
  /// Of what is measured once and cast twice: the magnitude itself, whose bits a maximum is. None of what is cast in tiles.
  static BufferSpec kept_maximum_spec(const Fp8Recipe& recipe, std::string name) {
    return {std::move(name), 1, in_blocks(recipe) ? 0 : 1, DType::float32};
  }
  /// As a maximum. @param scratch instead, of casts in tiles
  Tensor kept_maximum(const Tensor& kept, const Tensor& scratch) const {
    return in_blocks(recipe_) ? scratch : Tensor{kept.data, DType::int32, 1, 1};
  }
  /// The workspace of all three products of a linear map from `in` to `out`.
  static std::int64_t workspace(const device::OperationSizes& sizes, std::int64_t tokens, std::int64_t in,
                                std::int64_t out) {
    return std::max({sizes.fp8_product_workspace(tokens, out, in),
                     sizes.fp8_product_workspace(tokens, in, out),
                     sizes.fp8_product_workspace(out, in, tokens)});
  }
  static bool in_blocks(const Fp8Recipe& recipe) { return recipe.scales == Fp8Scales::block; }

  /// With one scale for the tensor both forms have the same, in the memory of the transposed one if there is one.
  Fp8Tensor tensor(const Tensor& values, const Tensor& transposed, const Fp8ScaleMemory& memory) const {
    if (!in_blocks(recipe_)) {
      const Tensor& scale = transposed ? memory.of_transposed : memory.of_values;
      return {values, transposed, scale, scale};
    }
    return {values, transposed, tile_scales(memory.of_values, values),
            tile_scales(memory.of_transposed, transposed)};
  }

  /// `maximum` for an operation that measures what it writes; empty if the cast measures it itself.
  Tensor measured(const Tensor& maximum) const {
    if (in_blocks(recipe_)) return {};
    c_.operations.run(device::op::Zero{.destination = maximum});
    return maximum;
  }

  /// For cast_measured().
  void measure(const Tensor& source, const Tensor& maximum) const {
    if (!in_blocks(recipe_))
      c_.operations.run(device::op::Fp8Maximum{.source = source, .maximum = measured(maximum)});
  }

  /// @param maximum of `source`, which the operation that wrote it was given as measured(maximum)
  void cast_measured(const Tensor& source, const Fp8Tensor& to, const Tensor& maximum) const {
    if (in_blocks(recipe_)) return cast_tiles(source, to, maximum);
    c_.operations.run(cast_of(source, to, maximum));
  }

  /// @param maximum scratch
  void cast(const Tensor& source, const Fp8Tensor& to, const Tensor& maximum) const {
    measure(source, maximum);
    cast_measured(source, to, maximum);
  }

  /// The gradient of the residual stream, on entry of a backward pass.
  /// @param is_measured the layer after this one left its maximum, as measured_gradient()
  void cast_gradient(bool is_measured, const Fp8Tensor& to, const Tensor& maximum) const {
    if (is_measured && c_.gradient_maximum && !in_blocks(recipe_))
      return cast_measured(c_.gradient, to, c_.gradient_maximum);
    cast(c_.gradient, to, maximum);
  }

  /// `maximum` for the operation that writes this gradient last, for the layer before, unless that is empty.
  /// @param casts whether the layer before casts it
  Tensor measured_gradient(bool casts) const {
    return casts && c_.gradient_maximum ? measured(c_.gradient_maximum) : Tensor{};
  }

  // With one scale for the tensor, what only products read is computed twice, to be measured and to be cast, and never
  // written in another dtype. Tiles are measured as they are cast, so it is written.

  /// Columns of scratch memory that norm() needs.
  static std::int64_t norm_scratch(const Fp8Recipe& recipe, std::int64_t hidden) {
    return in_blocks(recipe) ? hidden : 0;
  }
  /// norm(input), cast. @param scratch [T, norm_scratch()] at least
  void norm(double eps, const Tensor& scratch, const Tensor& inverse_rms, const Fp8Tensor& to,
            const Tensor& maximum) const {
    if (in_blocks(recipe_)) {
      const Tensor y = shaped(scratch, c_.input.rows, c_.input.cols);
      run_norm(c_, eps, y, inverse_rms);
      return cast_tiles(y, to, maximum);
    }
    run_norm(c_, eps, {}, inverse_rms, measured(maximum));
    c_.operations.run(device::op::RmsNormCast{.x = c_.input,
                                              .weight = c_.parameters[0],
                                              .inverse_rms = inverse_rms,
                                              .cast = cast_of({}, to, maximum)});
  }

  /// The gradient of gate_up, cast; gate_up itself is anything then.
  void swiglu_backward(const Tensor& dactivated, const Tensor& gate_up, const Fp8Tensor& to,
                       const Tensor& maximum) const {
    c_.operations.run(device::op::SwigluBackward{.dactivated = dactivated,
                                                 .gate_up = gate_up,
                                                 .maximum = measured(maximum),
                                                 .writes = in_blocks(recipe_)});
    if (in_blocks(recipe_)) return cast_tiles(gate_up, to, maximum);
    c_.operations.run(device::op::SwigluBackwardCast{
        .dactivated = dactivated, .gate_up = gate_up, .cast = cast_of({}, to, maximum)});
  }

  /// dqkv, rotated back and cast; itself it is anything then.
  void rope_backward(const Tensor& rope, const device::AttentionShape& shape, const Tensor& dqkv,
                     const Fp8Tensor& to, const Tensor& maximum) const {
    c_.operations.run(device::op::Rope{.positions = c_.batch.positions,
                                       .rope = rope,
                                       .shape = shape,
                                       .backward = true,
                                       .qkv = dqkv,
                                       .maximum = measured(maximum),
                                       .writes = in_blocks(recipe_)});
    if (in_blocks(recipe_)) return cast_tiles(dqkv, to, maximum);
    c_.operations.run(device::op::RopeBackwardCast{.positions = c_.batch.positions,
                                                   .rope = rope,
                                                   .shape = shape,
                                                   .qkv = dqkv,
                                                   .cast = cast_of({}, to, maximum)});
  }

  /// y = x weight^T (+ residual)
  void forward(const Fp8Tensor& x, const Tensor& weight, const Tensor& weight_scale, const Tensor& residual,
               const Tensor& y, const Tensor& workspace) const {
    c_.operations.run(device::op::Fp8Product{.a = x.values,
                                             .a_scale = x.scale,
                                             .b = weight,
                                             .b_scale = weight_scale,
                                             .residual = residual,
                                             .y = y,
                                             .accumulate_y = Accumulate::no,
                                             .fast_accumulation = !in_blocks(recipe_),
                                             .workspace = workspace});
  }

  /// dx = dy weight, dweight (+)= dy^T x
  void backward(const Fp8Backward& b, const Tensor& workspace) const {
    c_.operations.run(device::op::Fp8Product{.a = b.dy.values,
                                             .a_scale = b.dy.scale,
                                             .b = b.weight.transposed,
                                             .b_scale = b.weight.scale,
                                             .residual = {},
                                             .y = b.dx,
                                             .accumulate_y = Accumulate::no,
                                             .fast_accumulation = false,
                                             .workspace = workspace});
    if (!b.dweight) return;
    c_.operations.run(device::op::Fp8Product{.a = b.dy.transposed,
                                             .a_scale = b.dy.transposed_scale,
                                             .b = b.x.transposed,
                                             .b_scale = b.x.transposed_scale,
                                             .residual = {},
                                             .y = b.dweight,
                                             .accumulate_y = b.accumulate_dweight,
                                             .fast_accumulation = false,
                                             .workspace = workspace});
  }

 private:
  static device::Fp8Scaling scaling(const Fp8Recipe& recipe) {
    return in_blocks(recipe) ? device::Fp8Scaling::tiles : device::Fp8Scaling::tensor;
  }

  static Tensor tile_scales(const Tensor& memory, const Tensor& of) {
    if (!of) return {};
    const auto shape = device::fp8_scale_shape(device::Fp8Scaling::tiles, of.rows, of.cols);
    return shaped(memory, shape.rows, shape.cols);
  }

  device::op::Fp8Cast cast_of(const Tensor& source, const Fp8Tensor& to, const Tensor& maximum) const {
    return {.source = source,
            .maximum = maximum,
            .values = to.values,
            .transposed = to.transposed,
            .scale = to.scale,
            .counts = c_.fp8_counts};
  }

  void cast_tiles(const Tensor& source, const Fp8Tensor& to, const Tensor& maximum) const {
    c_.operations.run(device::op::Zero{.destination = maximum});
    c_.operations.run(device::op::Fp8TileCast{.source = source,
                                              .values = to.values,
                                              .scales = to.scale,
                                              .transposed = to.transposed,
                                              .transposed_scales = to.transposed_scale,
                                              .maximum = maximum,
                                              .counts = c_.fp8_counts});
  }

  const LayerContext& c_;
  Fp8Recipe recipe_;
};

}  // namespace llampi::model
