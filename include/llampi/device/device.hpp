// SPDX-License-Identifier: Apache-2.0
// A device: memory, streams, events, and the numeric operations of a Llama at fusion grain.
//
// Conventions
//   T tokens of a micro-batch, H hidden size, F feed-forward size, V vocabulary, D head dimension, Hq query
//   heads, Hkv key/value heads (Hq is a multiple of Hkv). Query head h reads key/value head h / (Hq / Hkv).
//   Weights are [out, in] as in PyTorch's Linear; activations are [T, features]; all contiguous, row-major.
//   Floating-point operands of one call have one dtype, except where a comment says otherwise. Statistics,
//   scalars and accumulation are float32 or better. A device refuses (throws Error) a dtype that it has no
//   kernels for. `Accumulate::no` overwrites an output whatever it holds, NaN included; `Accumulate::yes`
//   adds to it. Operations allocate nothing: scratch memory is passed as `workspace`, whose size
//   `OperationSizes` gives. A gradient of a weight (dweight, dtable) that is an empty Tensor is not computed:
//   the weight is frozen. All operations are issued on Stream::compute, in order, and are asynchronous: a
//   device may return before they are done. Equal inputs give equal bits on the same device with the same
//   number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "llampi/core/tensor.hpp"

namespace llampi::device {

/// Streams are named by their purpose. `copy` goes from the host to the device, `copy_out` back: a link does
/// both at once. `host` is the calling thread: what waits there blocks it, and what it has done is complete.
enum class Stream : std::uint8_t { compute, unshard, reduce, copy, copy_out, host };
inline constexpr int kStreams = 6;
const char* to_string(Stream stream);

enum class Accumulate : bool { no, yes };

/// Scalars of one optimizer step, in device memory: a step that was captured can be replayed with other
/// values.
struct StepScalars {
  double inverse_tokens = 0;  ///< loss_scale / valid labels of the global batch
  double loss_scale = 1;      ///< gradients are this much too large until clip_coefficient takes it out again
  double step = 0;            ///< number of the update, for stochastic rounding
  double learning_rate = 0;   ///< of this step
  double bias_correction1 = 1;  ///< 1 - beta1^t
  double bias_correction2 = 1;  ///< 1 - beta2^t
  double clip_coefficient = 1;  ///< written by finish_norm; divided by loss_scale
  double grad_norm = 0;         ///< written by finish_norm; before clipping, of the unscaled gradient
  double loss_sum = 0;          ///< sum of the token losses of this rank; head_loss adds to it
};

/// Constants of AdamW (Loshchilov & Hutter, arXiv 1711.05101), as torch.optim.AdamW has them.
struct AdamWConstants {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
};

/// Elements [begin, end) of a shard that are real (no padding) and belong to one parameter group.
struct UpdateRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  double weight_decay = 0;
  double learning_rate_factor = 1;
  std::uint64_t rounding_key = 0;  ///< of the parameter, for stochastic rounding
  std::int64_t first_element = 0;  ///< logical element of the parameter that stands at `begin`
};

/// The heads of an attention; a row of `qkv` holds Hq query heads, then Hkv key heads, then Hkv value heads,
/// each of D.
struct AttentionShape {
  std::int64_t query_heads = 0;
  std::int64_t key_value_heads = 0;
  std::int64_t head_dim = 0;

  std::int64_t query_cols() const { return query_heads * head_dim; }
  std::int64_t key_value_cols() const { return key_value_heads * head_dim; }
  std::int64_t qkv_cols() const { return query_cols() + 2 * key_value_cols(); }
};

/// The tokens of one micro-batch as the model sees them. All members are device memory but `segments`.
/// A segment is a run of tokens that see each other: a document within one sequence, or a whole sequence.
struct Batch {
  Tensor tokens;           ///< int32 [1, T], ids
  Tensor labels;           ///< int32 [1, T], ids; -1 where there is no valid label
  Tensor positions;        ///< int32 [1, T], position within the segment, for RoPE
  Tensor segment_offsets;  ///< int32 [1, T + 1]; the first segments + 1 entries count: segment i is [i], [i +
                           ///< 1])
  std::int64_t segments = 0;
  std::int64_t past = 0;  ///< generation: tokens of the sequence before these, whose keys and values are kept
};

/// A completed point of a stream. Move-only; a device that runs in the caller's thread has nothing to store
/// in it.
class Event {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
  };
  Event() = default;
  explicit Event(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl* get() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

/// What was captured of a device's work, to be done again and again at one call. Move-only.
class Graph {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
  };
  Graph() = default;
  explicit Graph(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const Impl* get() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Device memory, freed when destroyed. Aligned to at least 4096 bytes, filled with zeros. Move-only.
class Memory {
 public:
  Memory() = default;
  Memory(void* data, std::int64_t bytes, std::function<void(void*)> release)
      : data_(data, std::move(release)), bytes_(bytes) {}
  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, std::function<void(void*)>> data_{nullptr, [](void*) {}};
  std::int64_t bytes_ = 0;
};

/// Scratch memory that operations need: pure functions of shapes, so that a plan needs no device.
class OperationSizes {
 public:
  virtual ~OperationSizes() = default;
  /// Memory that the device's operations share for the whole run; given to it by Device::set_workspace().
  virtual std::int64_t shared_workspace() const { return 0; }
  /// Whether micro-batches are copied to allocate_host() memory before they travel: where copies from other
  /// memory hold the host up, and a captured step reads them always at the same place.
  virtual bool stages_inputs() const { return false; }
  /// `longest` is the largest number of tokens of a segment; `dtype` that of the activations.
  virtual std::int64_t attention_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                           DType dtype) const = 0;
  virtual std::int64_t attention_backward_workspace(AttentionShape shape, std::int64_t tokens,
                                                    std::int64_t longest, DType dtype) const = 0;
  virtual std::int64_t rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                                   DType dtype) const = 0;
  /// Also the bound on what is ever stored of the [tokens, vocabulary] logits.
  virtual std::int64_t head_loss_workspace(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary,
                                           DType dtype) const = 0;
};

class Device : public OperationSizes {
 public:
  /// For the log: kind, kernels, libraries, threads.
  virtual std::string describe() const = 0;

  // ---- memory and order ----
  virtual Memory allocate(std::int64_t bytes) = 0;
  /// shared_workspace() bytes, before the first operation; they stay the device's.
  virtual void set_workspace(Tensor /*workspace*/) {}
  /// Bytes that a rank could still allocate if `local_ranks` ranks of this node, of a GPU those that have it,
  /// shared what there is; a host's control group counts too. The largest number there is where unknown.
  virtual std::int64_t available_bytes(int local_ranks) const = 0;
  /// Host memory from which and to which copies are fast and asynchronous (page-locked where that matters).
  virtual Memory allocate_host(std::int64_t bytes) = 0;
  /// Host to device and back on `stream`; the host memory must stay valid until the stream is synchronized.
  /// A tensor that lies in host memory is copied likewise.
  virtual void upload(Tensor destination, const void* source, Stream stream) = 0;
  virtual void download(void* destination, Tensor source, Stream stream) = 0;
  /// Whether the calling thread may read and write this memory itself, once streams are synchronized.
  virtual bool is_host_memory(const void* memory) const = 0;
  /// A point after all that was issued on `stream` so far.
  virtual Event record(Stream stream) = 0;
  /// What is issued on `stream` from now on starts after `event`; with Stream::host the caller waits for it.
  virtual void wait(Stream stream, const Event& event) = 0;
  /// The calling thread waits for `event`: it may be another than the one that uses the device, which must
  /// keep the event until then, and may wait for it too. Does not call what set_progress() was given.
  virtual void wait_in_any_thread(const Event& event) const = 0;
  /// The host waits for everything issued on `stream`.
  virtual void synchronize(Stream stream) = 0;
  /// Called between operations, and again and again while the host waits for the device: communication
  /// advances, and what it throws ends the wait.
  virtual void set_progress(std::function<void()> progress) = 0;

  // ---- capture ----
  /// Whether work can be captured. If not, what follows throws Error.
  virtual bool can_capture() const { return false; }
  /// What is issued from now on, on any stream, is not done but recorded; it comes after all that is on
  /// Stream::compute. The host may neither wait for the device nor ask whether an event is reached nor
  /// allocate, and memory of the host must be allocate_host()'s. Operations and collectives must have run
  /// with the same shapes before: what is made or chosen at their first use cannot be captured.
  virtual void begin_capture();
  /// Joins all streams. @throws UserError if there is no memory for the graph
  virtual Graph end_capture();
  /// Instead of end_capture() after an exception.
  virtual void drop_capture() noexcept {}
  /// Does what was captured, in the same memory, on Stream::compute: after what is there now and before what
  /// comes.
  virtual void replay(const Graph& graph);

  // ---- profilers ----
  /// Names what the host does until end_range(), for a profiler of the device; ranges may lie in each other.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}

  // ---- operations ----
  /// x[t] = table[tokens[t]].   table [V, H], x [T, H]
  virtual void embedding(const Batch& batch, Tensor table, Tensor x) = 0;
  /// dtable[v] (+)= sum over t with tokens[t] = v of dx[t], in order of t.
  virtual void embedding_backward(const Batch& batch, Tensor dx, Tensor dtable, Accumulate accumulate) = 0;

  /// RMSNorm (Zhang & Sennrich, arXiv 1910.07467): y = x * inverse_rms * weight, inverse_rms =
  /// 1/sqrt(mean(x^2) + eps). x, y [T, H]; weight [1, H]; inverse_rms [1, T], float32 (float64 if x is).
  virtual void rms_norm(Tensor x, Tensor weight, double eps, Tensor y, Tensor inverse_rms) = 0;
  /// dx (+)= gradient with respect to x; with Accumulate::yes `dx` holds the gradient of the residual branch
  /// on entry. dweight (+)= sum over t of dy * x * inverse_rms.
  virtual void rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor inverse_rms, Tensor dx,
                                 Accumulate accumulate_dx, Tensor dweight, Accumulate accumulate_dweight,
                                 Tensor workspace) = 0;

  /// qkv = x weight^T, then RoPE (Su et al., arXiv 2104.09864; the half-rotated layout of Hugging Face) on
  /// the query and key heads: with c = rope[pos][0][j], s = rope[pos][1][j], j < D/2:
  ///   (a[j], a[j + D/2]) -> (a[j] c - a[j + D/2] s, a[j + D/2] c + a[j] s).
  /// x [T, H]; weight [Hq D + 2 Hkv D, H]; rope [positions, D] = D/2 cosines, then D/2 sines, float32
  /// (float64 if x is).
  virtual void qkv_rope(const Batch& batch, Tensor x, Tensor weight, Tensor rope, AttentionShape shape,
                        Tensor qkv) = 0;
  /// dqkv is rotated back in place; then dx = dqkv weight, dweight (+)= dqkv^T x.
  virtual void qkv_rope_backward(const Batch& batch, Tensor dqkv, Tensor x, Tensor weight, Tensor rope,
                                 AttentionShape shape, Tensor dx, Tensor dweight,
                                 Accumulate accumulate_dweight) = 0;

  /// Causal attention inside each segment, scale 1/sqrt(D). out [T, Hq D]; log_sum_exp [Hq, T] of the scaled
  /// scores, float32 (float64 if qkv is). Never stores a segment x segment matrix. `longest` bounds the
  /// segments' lengths and is the value the workspace was sized with.
  virtual void attention(const Batch& batch, std::int64_t longest, AttentionShape shape, Tensor qkv,
                         Tensor out, Tensor log_sum_exp, Tensor workspace) = 0;
  /// Attention of the next T tokens of a sequence, of which the first batch.past are known: their keys and
  /// values are put into rows [past, past + T) of `cache` [C, 2 Hkv D] (a row is keys, then values), C >=
  /// past + T; query t sees rows [0, past + t]. out [T, Hq D]. The workspace is that of attention() with
  /// `longest` = C. No gradient.
  virtual void attention_cached(const Batch& batch, AttentionShape shape, Tensor qkv, Tensor cache,
                                Tensor out, Tensor workspace) = 0;
  /// dqkv [T, Hq D + 2 Hkv D] is overwritten.
  virtual void attention_backward(const Batch& batch, std::int64_t longest, AttentionShape shape, Tensor dout,
                                  Tensor qkv, Tensor out, Tensor log_sum_exp, Tensor dqkv,
                                  Tensor workspace) = 0;

  /// y = residual + x weight^T.   x [T, in], weight [out, in], residual, y [T, out]; y may be residual.
  virtual void projection_residual(Tensor x, Tensor weight, Tensor residual, Tensor y) = 0;
  /// dx = dy weight, dweight (+)= dy^T x.
  virtual void projection_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight,
                                   Accumulate accumulate_dweight) = 0;

  /// SwiGLU (Shazeer, arXiv 2002.05202): gate_up = x weight^T with weight [2F, H] = gate rows, then up rows;
  /// activated = silu(gate) * up.   gate_up [T, 2F], activated [T, F]
  virtual void gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) = 0;
  /// activated = silu(gate) * up once more, from gate_up; the bits of gate_up_swiglu.
  virtual void swiglu(Tensor gate_up, Tensor activated) = 0;
  /// gate_up is overwritten with its gradient; dx = dgate_up weight, dweight (+)= dgate_up^T x.
  virtual void gate_up_swiglu_backward(Tensor dactivated, Tensor gate_up, Tensor x, Tensor weight, Tensor dx,
                                       Tensor dweight, Accumulate accumulate_dweight) = 0;

  /// scalars->loss_sum += sum over valid labels of -log softmax(x weight^T)[label].   x [T, H], weight [V, H]
  /// Chunk by chunk: no more of the logits is stored than `workspace` holds.
  virtual void head_loss(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars,
                         Tensor workspace) = 0;
  /// The same, and at once the gradients of loss_sum * inverse_tokens: dx = ..., dweight (+)= ...
  virtual void head_loss_backward(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars,
                                  Tensor dx, Tensor dweight, Accumulate accumulate_dweight,
                                  Tensor workspace) = 0;
  /// y = x weight^T.
  virtual void linear(Tensor x, Tensor weight, Tensor y) = 0;

  /// destination += source; equal shapes.
  virtual void add(Tensor source, Tensor destination) = 0;
  virtual void copy(Tensor source, Tensor destination) = 0;
  /// Between floating-point dtypes, elements in order; narrowing rounds to nearest even, equal dtypes are
  /// copied. The CPU device casts between float32 and the 16-bit formats.
  virtual void cast(Tensor source, Tensor destination) = 0;
  /// Bytes are set to zero.
  virtual void zero(Tensor destination) = 0;

  // The global gradient norm is exact in the sense that it does not depend on how the elements are spread
  // over ranks, units or threads: squares are summed as integers on a grid given by the largest magnitude.
  // A gradient is float32 or bfloat16, in adamw() too; bfloat16 counts as the float32 that it widens to.
  /// maximum[0] (int32: the bits of a non-negative float32, which order as the floats do; NaN counts as the
  /// largest) = max(maximum[0], |x|) over `ranges` of `gradient`.
  virtual void max_magnitude(Tensor gradient, std::span<const UpdateRange> ranges, Tensor maximum) = 0;
  /// limbs (int64 [1, 2]) += the squares of `ranges` of `gradient`, each cut to high and low limbs of the
  /// grid of `maximum`, which is the same on all ranks (see grid.hpp).
  virtual void sum_squares(Tensor gradient, std::span<const UpdateRange> ranges, Tensor maximum,
                           Tensor limbs) = 0;
  /// From the limbs summed over all ranks: scalars->grad_norm, and clip_coefficient = min(1, max_norm / (norm
  /// + 1e-6)), or 1 if max_norm is 0; the norm is that of the gradient / loss_scale, and clip_coefficient is
  /// divided by loss_scale. Not finite if any gradient is not.
  virtual void finish_norm(Tensor maximum, Tensor limbs, double max_norm, StepScalars* scalars) = 0;

  /// AdamW in one pass over `ranges` of a shard: gradients are multiplied by clip_coefficient; decoupled
  /// decay, bias correction, eps added to the corrected root, as torch.optim.AdamW:
  ///   p -= lr wd p;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= (lr / c1) m / (sqrt(v) / sqrt(c2) +
  ///   eps).
  /// Gradient, master and moments are each float32 or bfloat16, `shard` (in the dtype that is
  /// gathered) is float32, bfloat16 or float16. Arithmetic is float32 in any case; the step uses the moments
  /// before they are rounded. `shard` receives the new parameters as `master` keeps them, rounded to nearest
  /// even; it may be `master` itself. A master or moments in bfloat16 are rounded stochastically: 16 random
  /// bits are added below the bits that are kept, so that the mean is right; NaN stays NaN. For logical
  /// element e = first_element + (i - begin) they are the 16 bits from bit 16 (e mod 8) on of one block of
  /// Philox4x32-10 (core/philox.hpp), counted from the lowest bit of its first word. The block's key is
  /// rounding_key (lower word, upper word); its counter is {lower word of e / 8, upper word of e / 8, step,
  /// which}, with which = 0 for the master, 1 for exp_avg, 2 for exp_avg_sq. Does nothing if grad_norm is not
  /// finite.
  virtual void adamw(Tensor gradient, std::span<const UpdateRange> ranges, const AdamWConstants& constants,
                     const StepScalars* scalars, Tensor master, Tensor exp_avg, Tensor exp_avg_sq,
                     Tensor shard) = 0;
};

/// A range of a device's profiler, from here to the end of the scope. `name` is not copied.
class Range {
 public:
  Range(Device& device, const char* name) : device_(device) { device.begin_range(name); }
  ~Range() { device_.end_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Device& device_;
};

/// Sizes as the CPU device with `threads` threads needs them.
std::unique_ptr<OperationSizes> make_cpu_sizes(int threads);
/// The CPU device: float32 arithmetic, `threads` OpenMP threads (at least 1).
/// @throws UserError if the matrix-product library would use a generic kernel on a CPU with AVX2 or AVX-512.
std::unique_ptr<Device> make_cpu_device(int threads);
/// The slow, obvious version of each operation, in float64: what tests compare with. One thread.
std::unique_ptr<Device> make_reference_device();

}  // namespace llampi::device
