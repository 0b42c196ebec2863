// SPDX-License-Identifier: Apache-2.0
// A model as data (modules, parameters, layers) and as arithmetic (forward and backward of each layer).
// `fsdp` works on these types alone; Llama is one implementation, a user's own model another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llampi/core/tensor.hpp"
#include "llampi/device/forward.hpp"
#include "llampi/device/operation_sizes.hpp"

namespace llampi::model {

/// How a parameter is initialised: ones, zeros, normal with the given standard deviation, or uniform in [-bound, bound).
struct Initializer {
  enum class Kind : std::uint8_t { ones, normal, zeros, uniform } kind = Kind::normal;
  double standard_deviation = 0.02;
  double bound = 0;
};

struct Parameter {
  std::string name;                 ///< Hugging Face's, for example "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< one or two dimensions
  int module = 0;                   ///< index into Model::modules(), of the module that holds it
  Initializer initializer = {};
  /// Placed directly after the preceding parameter, without a gap, so that both are one matrix (q, k, v;
  /// gate, up).
  bool fused_with_previous = false;
  /// Part of a low-rank adapter. In a model that has some they alone are trained, and checkpoints hold them alone.
  bool adapter = false;

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const auto extent : shape) n *= extent;
    return n;
  }
};

/// A node of the module tree, for wrap policies. Parents stand before their children.
struct Module {
  std::string name;  ///< "model.layers.0.self_attn"; the root's is empty
  std::string type;  ///< class name as in transformers: "LlamaDecoderLayer"
  int parent = -1;
};

/// A matrix that a layer needs.
struct BufferSpec {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType dtype = DType::float32;
  /// Saved tensors only: backward() can write it once more (LayerContext::recomputes).
  bool recomputed = false;
  /// Bytes that it reads and writes for that, besides this tensor and what it reads in any case.
  std::int64_t recomputation_bytes = 0;

  std::int64_t bytes() const { return rows * cols * size_of(dtype); }
};

/// Sizes of a micro-batch on one rank.
struct BatchShape {
  std::int64_t sequences = 0;  ///< micro-batch
  std::int64_t seq_len = 0;
  /// Generation: tokens of one sequence whose keys and values are kept, so that a pass takes only the next
  /// seq_len; 0: a pass has whole sequences.
  std::int64_t context = 0;
  /// See OperationSizes::attention_backward_workspace().
  std::int64_t attention_room = 0;
  /// See OperationSizes::linear_cross_entropy_workspace().
  std::int64_t logits_bytes = device::kLogitsBytes;
  /// Sequences may be several documents. Then attention_room is used for these where it is too small for a whole sequence.
  bool documents = true;

  /// Positions that a token can have.
  std::int64_t positions() const { return context > 0 ? context : seq_len; }
  std::int64_t tokens() const { return sequences * seq_len; }
};

/// What a layer uses; a pure function of (batch shape, compute dtype, device sizes).
struct LayerSpec {
  struct Use {
    int parameter = 0;     ///< index into Model::parameters()
    bool forward = true;   ///< read by forward()
    bool backward = true;  ///< read by backward(); its gradient is written there in any case, unless frozen
  };
  std::string module;  ///< the module it is part of
  std::vector<Use> parameters = {};
  BufferSpec output = {};                         ///< [T, H] to the next layer; none (0 rows) for the last
  bool keeps_input = true;                        ///< backward() reads the input again
  std::vector<BufferSpec> saved = {};             ///< written by forward(), read by backward()
  std::vector<BufferSpec> forward_scratch = {};   ///< only inside forward()
  std::vector<BufferSpec> backward_scratch = {};  ///< only inside backward()
  std::vector<BufferSpec> kv_cache = {};          ///< from pass to pass, in generation
  /// Weights that it reads in 8 bits: for each product its parameters, indices into Model::parameters(), which
  /// join. All of them are matrices, and no other layer uses them.
  std::vector<std::vector<int>> fp8_weights = {};
  bool fp8_blocks = false;  ///< these have a scale for each block of 128 x 128; else one each
  std::optional<device::AttentionShape> attention = {};  ///< of its attention, if it computes one
};

/// A weight in 8 bits, of parameters that join: op::Fp8Product's operands. `values` are the parameters themselves,
/// stacked, which LayerContext::parameters has.
struct Fp8Weight {
  Tensor scale;       ///< one or of blocks, see device::Fp8Scaling; for backward() of what is transposed
  Tensor transposed;  ///< [in, out], for backward() alone
};

/// What a layer is given. All memory is the caller's; views are in the order of the spec.
struct LayerContext {
  device::Operations& operations;  ///< might be prepared and not run: a layer does all its work through them
  const device::Batch& batch;
  std::int64_t seq_len = 0;                          ///< of the BatchShape: no document is longer
  std::int64_t attention_room = 0;                   ///< likewise
  std::int64_t logits_bytes = device::kLogitsBytes;  ///< likewise
  Tensor input;  ///< the previous layer's output; none for the first layer
  Tensor output;
  /// Gradient of the residual stream: that of the output on entry of backward(), that of the input on exit,
  /// in place. The last layer only writes it, the first only reads it.
  Tensor gradient;
  std::span<const Tensor> parameters;
  /// backward() only. Empty where a parameter is frozen; of parameters that join, all or none.
  std::span<const Tensor> parameter_gradients;
  std::span<const Accumulate> accumulate;  ///< per parameter gradient: overwrite or add
  std::span<const Tensor> saved;
  /// backward(): the saved tensors that are marked BufferSpec::recomputed hold nothing. It writes them, with the bits that
  /// forward() gave them, before it reads them.
  bool recomputes = false;
  std::span<const Tensor> scratch;
  std::span<const Tensor> kv_cache;
  std::span<const Tensor> constants;            ///< the model's
  std::span<const Fp8Weight> fp8_weights = {};  ///< as LayerSpec::fp8_weights
  device::Fp8Counts* fp8_counts = nullptr;      ///< device memory: casts to 8 bits add to it
  /// int32 [1, 1], kept from one layer's backward() to that of the layer before: as op::Fp8Maximum, of `gradient`, where
  /// the one measures it for the other. Empty: each layer measures what it casts.
  Tensor gradient_maximum = {};
  const double* inverse_tokens =
      nullptr;                 ///< device memory: the gradients are those of loss_sum * inverse_tokens
  double* loss_sum = nullptr;  ///< device memory: the last layer adds to it
  Tensor
      logits;  ///< last layer's forward(): if set, [1, V] logits of the token `logits_row`, instead of the loss
  /// Of later tokens no result is used, and layers may leave them out; -1: all count.
  std::int64_t logits_row = -1;
};

/// A part of a block. The last layer of a model is the loss: its backward() does the forward as well, chunk
/// by chunk, so that logits are never whole; its forward() is for evaluation.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const = 0;
  /// Writes the saved tensors and, unless `output` is empty, the output.
  virtual void forward(LayerContext& context) const = 0;
  virtual void backward(LayerContext& context) const = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const std::vector<Module>& modules() const = 0;
  virtual const std::vector<Parameter>& parameters() const = 0;
  std::int64_t parameter_elements() const;  ///< of all parameters together
  virtual const std::vector<std::unique_ptr<Layer>>& layers() const = 0;
  /// Tables that do not change (RoPE), [rows, cols] for sequences up to seq_len; none if not overridden.
  virtual std::vector<BufferSpec> constants(std::int64_t seq_len, DType compute) const;
  /// Fills host memory of constant `index` in the dtype of its spec. To be overridden where there are any.
  virtual void fill_constant(int index, const BufferSpec& spec, void* data) const;
  /// Module type that the wrap policy `transformer` wraps.
  virtual std::string block_type() const = 0;
  int blocks() const;  ///< modules of that type
  virtual std::int64_t vocabulary() const = 0;
};

/// Statistics of RMSNorm, softmax and RoPE tables: float32, or float64 where the activations are.
inline DType statistics_dtype(DType compute) {
  return compute == DType::float64 ? DType::float64 : DType::float32;
}

}  // namespace llampi::model
