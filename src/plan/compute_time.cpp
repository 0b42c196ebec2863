// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/compute_time.hpp"

#include <algorithm>

#include "llampi/core/elements.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/layer_action.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::plan {
namespace {

namespace op = device::op;

/// Rows of logits that are computed at a time on a GPU.
std::int64_t rows_of_chunk(const Tensor& x, const Tensor& weight, std::int64_t logits_bytes) {
  return std::clamp<std::int64_t>(logits_bytes / (weight.rows * size_of(x.dtype)), 1, x.rows);
}

constexpr std::uintptr_t kArenaAddress = std::uintptr_t{1} << 50;

class Counter {
 public:
  explicit Counter(AttentionKernels kernels) : kernels_(kernels) {}
  Terms amounts;

  void operator()(const op::Embedding& o) { bytes({o.x, o.x}); }
  void operator()(const op::EmbeddingBackward& o) {
    bytes({o.dx});
    if (o.accumulate_dtable == Accumulate::no) bytes({o.dtable});
  }
  void operator()(const op::RmsNorm& o) { bytes({o.x, o.y}); }
  void operator()(const op::RmsNormBackward& o) {
    bytes({o.dy, o.x, o.dx, o.y});
    if (o.accumulate_dx == Accumulate::yes) bytes({o.dx});
  }
  void operator()(const op::QkvRope& o) {
    product(o.x.dtype, o.x.rows, o.weight.rows, o.x.cols);
    adapters(o.x, o.qkv, o.adapters);
    rotation(o.qkv, o.shape, o.transform);
  }
  void operator()(const op::Attention& o) {
    const double flops = attention_flops(o.documents, o.shape, o.qkv.rows);
    amounts[Term::attention_forward] += flops;
    amounts[Term::attention_forward_edge] += flops / length(o.documents, o.qkv.rows);
  }
  void operator()(const op::AttentionBackward& o) {
    const double flops = 2.5 * attention_flops(o.documents, o.shape, o.qkv.rows);
    const double edge = flops / length(o.documents, o.qkv.rows);
    const double head_edge = flops / static_cast<double>(o.shape.head_dim);
    const std::int64_t pieces =
        kernels_ == AttentionKernels::deterministic
            ? device::attention_pieces(o.shape, 1, o.documents.max_seqlen, o.attention_room)
            : 0;
    if (kernels_ == AttentionKernels::any_order) {
      amounts[Term::attention_any_order] += flops;
      amounts[Term::attention_any_order_edge] += edge;
      amounts[Term::attention_any_order_head_edge] += head_edge;
    } else if (pieces > 0) {
      amounts[Term::attention_deterministic] += flops;
      amounts[Term::attention_deterministic_edge] += edge;
      amounts[Term::attention_deterministic_head_edge] += head_edge;
      amounts[Term::attention_deterministic_piece] += edge * static_cast<double>(pieces - 1);
    } else {
      amounts[Term::attention_native] += flops;
      amounts[Term::attention_native_edge] += edge;
    }
  }
  void operator()(const op::CachedAttention& o) {
    Tensor visible = o.kv_cache;
    if (o.shape.window > 0) visible.rows = std::min(visible.rows, o.shape.window + o.qkv.rows);
    bytes({o.qkv, visible, o.out});
  }
  void operator()(const op::ProjectionResidual& o) {
    product(o.x.dtype, o.x.rows, o.weight.rows, o.x.cols);
    bytes({o.residual});
    adapters(o.x, o.y, o.adapters);
  }
  void operator()(const op::InputGradient& o) {
    product(o.dx.dtype, o.dx.rows, o.weight.rows, o.dx.cols);
    for (const auto& l : o.adapters) {
      bytes({columns(o.dy, l), l.u, columns(o.dy, l), l.du, l.du, o.dx, o.dx});
      if (l.dropout.probability > 0) bytes({o.dx, o.dx, o.dx});
    }
  }
  void operator()(const op::WeightGradient& o) {
    if (o.dweight) product(o.x.dtype, o.x.rows, o.dweight.rows, o.x.cols);
    added_to(o.dweight, o.accumulate_dweight);
    for (const auto& l : o.adapters) {
      bytes({l.du, o.x});
      if (l.dropout.probability > 0) bytes({o.x, o.x});
    }
  }
  void operator()(const op::GateUpSwiglu& o) {
    product(o.x.dtype, o.x.rows, o.weight.rows, o.x.cols);
    adapters(o.x, o.gate_up, o.adapters);
    bytes({o.gate_up, o.activated});
  }
  void operator()(const op::Swiglu& o) { bytes({o.gate_up, o.activated}); }
  void operator()(const op::LinearCrossEntropy& o) {
    head(o, 1);
    logits(o.weight, op::rows_with_logits(o), 1);
  }
  void operator()(const op::LinearCrossEntropyBackward& o) {
    head(o, o.dweight ? 3 : 2);
    logits(o.weight, op::rows_with_logits(o), 2);
    added_to(o.dweight, o.accumulate_dweight);
    // Each chunk of rows but the first adds to the gradient of the weight.
    const std::int64_t rows = rows_of_chunk(o.x, o.weight, o.logits_bytes);
    const auto chunks = ceil_div(op::rows_with_logits(o), rows);
    for (std::int64_t chunk = 1; o.dweight && chunk < chunks; ++chunk) bytes({o.dweight, o.dweight});
  }
  void operator()(const op::Fp8Product& o) {
    product(o.a.dtype, o.a.rows, o.b.rows, o.a.cols);
    bytes({o.residual});
    added_to(o.y, o.accumulate_y);
  }
  void operator()(const op::Fp8Maximum& o) { bytes({o.source}); }
  void operator()(const op::Fp8BlockMaximum& o) { bytes({o.source}); }
  void operator()(const op::Fp8Cast& o) { bytes({o.source, o.values, o.transposed}); }
  void operator()(const op::RmsNormCast& o) { bytes({o.x, o.cast.values, o.cast.transposed}); }
  void operator()(const op::SwigluBackwardCast& o) {
    bytes({o.dactivated, o.gate_up, o.cast.values, o.cast.transposed});
  }
  void operator()(const op::RopeBackwardCast& o) { bytes({o.qkv, o.cast.values, o.cast.transposed}); }
  void operator()(const op::Fp8BlockCast& o) { bytes({o.source, o.values}); }
  void operator()(const op::Fp8TileCast& o) { bytes({o.source, o.values, o.transposed}); }
  void operator()(const op::Fp8Transpose& o) { bytes({o.source, o.transposed}); }
  void operator()(const op::Fp8Scales&) {}
  void operator()(const op::Fp8BlockScales&) {}
  void operator()(const op::Rope& o) {
    if (!o.writes) {
      bytes({o.qkv});
    } else if (o.backward) {
      rotation_backward(o.qkv, o.shape, o.transform);
    } else {
      rotation(o.qkv, o.shape, o.transform);
    }
  }
  void operator()(const op::SwigluBackward& o) {
    bytes({o.dactivated, o.gate_up, o.activated});
    if (o.writes) bytes({o.gate_up});
  }
  void operator()(const op::LowRankDown& o) {
    for (const auto& l : o.adapters) down(o.x, l);
  }
  void operator()(const op::Linear& o) { product(o.x.dtype, o.x.rows, o.weight.rows, o.x.cols); }
  void operator()(const op::Add& o) { bytes({o.source, o.destination, o.destination}); }
  void operator()(const op::Copy& o) { bytes({o.source, o.destination}); }
  void operator()(const op::Cast& o) { bytes({o.source, o.destination}); }
  void operator()(const op::Zero& o) { bytes({o.destination}); }
  void operator()(const op::RandomNormal& o) { bytes({o.out}); }
  void operator()(const op::SumSquares& o) { bytes({o.gradient}); }
  void operator()(const op::FinishNorm&) {}
  void operator()(const op::AdamW& o) {
    bytes({o.gradient, o.master, o.master, o.exp_avg, o.exp_avg, o.exp_avg_sq, o.exp_avg_sq});
    if (o.shard.data != o.master.data) bytes({o.shard});
  }

 private:
  void bytes(std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) amounts[Term::memory_bytes] += static_cast<double>(tensor.bytes());
  }
  /// Thin products take the time of the memory that they read and write.
  void down(const Tensor& x, const device::LowRank& l) {
    bytes({x, l.a, l.u});
    if (l.dropout.probability > 0) bytes({x, x});
  }
  static Tensor columns(const Tensor& y, const device::LowRank& l) {
    return {y.data, y.dtype, y.rows, l.b.rows};
  }
  void adapters(const Tensor& x, const Tensor& y, std::span<const device::LowRank> all) {
    for (const auto& l : all) {
      down(x, l);
      bytes({l.u, l.b, columns(y, l), columns(y, l)});
    }
  }
  void product(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k, double times = 1) {
    const double flops =
        times * 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const double edges =
        flops * (1 / static_cast<double>(m) + 1 / static_cast<double>(n) + 1 / static_cast<double>(k));
    const bool half = is_half(dtype);
    if (size_of(dtype) == 1) {
      amounts[Term::product_fp8] += flops;
      amounts[Term::product_fp8_edge] += edges;
    } else {
      amounts[half ? Term::product_half : Term::product_float32] += flops;
      amounts[half ? Term::product_half_edge : Term::product_float32_edge] += edges;
    }
  }
  /// A product that adds to its result reads it. That it writes it is within its rate.
  void added_to(const Tensor& y, Accumulate accumulate) {
    if (accumulate == Accumulate::yes) bytes({y});
  }
  template <class Loss>
  void head(const Loss& o, double products) {
    const std::int64_t rows = rows_of_chunk(o.x, o.weight, o.logits_bytes);
    product(o.x.dtype, rows, o.weight.rows, o.x.cols,
            products * static_cast<double>(op::rows_with_logits(o)) / static_cast<double>(rows));
  }
  /// In the dtype of the weight.
  void logits(const Tensor& weight, std::int64_t rows, double times) {
    amounts[Term::memory_bytes] += times * static_cast<double>(rows) * static_cast<double>(weight.rows) *
                                   static_cast<double>(size_of(weight.dtype));
  }
  /// Query and key heads, read and written; value heads too where they change or move.
  void rotation(const Tensor& qkv, device::AttentionShape shape, const op::QkvTransform& transform) {
    if (transform) return bytes({qkv, qkv});
    amounts[Term::memory_bytes] += 2.0 * static_cast<double>(qkv.rows) *
                                   static_cast<double>(shape.query_cols() + shape.key_value_cols()) *
                                   static_cast<double>(size_of(qkv.dtype));
  }
  /// Norms read the product once more, and a bias's gradient the value heads.
  void rotation_backward(const Tensor& dqkv, device::AttentionShape shape,
                         const op::QkvTransform& transform) {
    rotation(dqkv, shape, {});
    if (transform.has_norms()) bytes({transform.product});
    if (transform.bias) bytes({dqkv});
  }
  /// Of the documents, on average.
  static double length(const device::Documents& documents, std::int64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(std::max<std::int64_t>(1, documents.count));
  }
  static double attention_flops(const device::Documents& documents, device::AttentionShape shape,
                                std::int64_t tokens) {
    return shape.forward_flops(static_cast<double>(tokens), length(documents, tokens));
  }

  AttentionKernels kernels_;
};

/// The device that counts.
class CountingOperations final : public device::Operations {
 public:
  CountingOperations(const device::OperationSizes& sizes, AttentionKernels kernels)
      : sizes_(sizes), kernels_(kernels) {}
  const device::OperationSizes& sizes() const override { return sizes_; }
  Terms counted;

 protected:
  void issue(const device::Operation& operation) override { counted += amounts_of(operation, kernels_); }

 private:
  const device::OperationSizes& sizes_;
  AttentionKernels kernels_;
};

class StepCounter {
 public:
  StepCounter(const model::Model& model, const fsdp::EngineOptions& options, const fsdp::DeviceMesh& mesh,
              const fsdp::CompiledModel& compiled, const device::OperationSizes& sizes, bool on_gpu,
              AttentionKernels kernels)
      : model_(model),
        options_(options),
        program_(compiled.step),
        sizes_(sizes),
        shards_(mesh.shard_count()),
        replicas_(mesh.replica_count()),
        on_gpu_(on_gpu),
        kernels_(kernels) {}

  ActionWork of(const fsdp::Action& action) const {
    using fsdp::Op;
    CountingOperations device(sizes_, kernels_);
    ActionWork work;
    if (action.op == Op::forward || action.op == Op::recompute || action.op == Op::backward) {
      layer(action, device);
      work.recomputes = action.op == Op::recompute;
    } else if (action.op == Op::sum_squares) {
      squares(first(action, fsdp::Slot::gradient), device);
    } else if (action.op == Op::update) {
      update(action, device);
    } else if (action.op == Op::cast_params || action.op == Op::cast_grads || action.op == Op::add ||
               action.op == Op::fp8_cast || action.op == Op::transpose || is_copy(action) ||
               copies_by_itself(action)) {
      local(action, device);
    }
    if (sums(action)) {
      // It reads what all ranks have sent and writes its part.
      device.counted[Term::memory_bytes] += static_cast<double>(action.bytes) * (1 + 1.0 / ranks_of(action));
      work.communicates = true;
    }
    work.amounts = device.counted;
    if (action.op != Op::forward && action.op != Op::recompute && action.op != Op::backward) {
      // Long arrays, one pass.
      work.amounts[Term::array_bytes] = work.amounts[Term::memory_bytes];
      work.amounts[Term::memory_bytes] = 0;
    }
    work.optimizes = action.op == Op::norm || action.op == Op::sum_squares || action.op == Op::update;
    if (action.op == Op::update && action.stream == device::Stream::host && on_gpu_) {
      work.amounts[Term::host_memory_bytes] = work.amounts[Term::array_bytes];
      work.amounts[Term::array_bytes] = work.amounts[Term::kernels] = 0;
    }
    return work;
  }

 private:
  /// A tensor of the operand's shape. Nothing is ever read or written there, but the addresses are as far apart as in the arena.
  Tensor tensor(const fsdp::Operand& operand) const {
    if (operand.buffer == fsdp::BufferId::none) return {};
    const fsdp::Buffer& buffer = program_[operand.buffer];
    const auto place =
        kArenaAddress * (static_cast<std::uintptr_t>(buffer.arena) + 1) +
        static_cast<std::uintptr_t>(buffer.offset + bytes_of(buffer.dtype, operand.part.offset));
    auto* const data = reinterpret_cast<void*>(place);  // NOLINT(performance-no-int-to-ptr)
    if (operand.part.own != fsdp::Own::none) {
      const int parts = operand.part.own == fsdp::Own::shard ? shards_ : replicas_;
      return {data, buffer.dtype, 1, buffer.elements() / parts};
    }
    if (operand.part.rows > 0) return {data, buffer.dtype, operand.part.rows, operand.part.cols};
    return {data, buffer.dtype, buffer.rows, buffer.cols};
  }
  Tensor first(const fsdp::Action& action, fsdp::Slot slot) const {
    const fsdp::Operand* found = action.find(slot);
    return found == nullptr ? Tensor{} : tensor(*found);
  }

  void layer(const fsdp::Action& action, CountingOperations& device) const {
    const device::Batch batch =
        device::HostBatch::view_of(first(action, fsdp::Slot::batch), {options_.batch.sequences});
    std::vector<Tensor> tensors;
    for (const auto& operand : action.operands) tensors.push_back(tensor(operand));
    optim::StepScalars scalars;
    double loss_sum = 0;
    fsdp::issue_layer({.action = action,
                       .tensors = tensors,
                       .shape = options_.batch,
                       .batch = batch,
                       .scalars = &scalars,
                       .loss_sum = &loss_sum},
                      model_, device);
  }

  static void squares(const Tensor& gradient, CountingOperations& device) {
    device.run(op::SumSquares{.gradient = gradient, .ranges = {}, .sum = {}, .maximum = {}});
  }

  void update(const fsdp::Action& action, CountingOperations& device) const {
    using fsdp::Slot;
    const fsdp::Operand& shard = *action.find(Slot::output);
    const Tensor master = first(action, Slot::master);
    if (shard.access == fsdp::Access::write)
      device.run(op::Cast{.source = master, .destination = tensor(shard)});
    device.run(op::AdamW{.gradient = first(action, Slot::gradient),
                         .ranges = {},
                         .beta1 = 0,
                         .beta2 = 0,
                         .eps = 0,
                         .scalars = nullptr,
                         .master = master,
                         .exp_avg = first(action, Slot::exp_avg),
                         .exp_avg_sq = first(action, Slot::exp_avg_sq),
                         .shard = tensor(shard)});
  }

  int ranks_of(const fsdp::Action& action) const {
    if (action.ranks == fsdp::Ranks::self) return 1;
    return action.ranks == fsdp::Ranks::shard_group ? shards_ : replicas_;
  }

  /// On CPUs messages and sums are of the same cores, and the bandwidth of collectives there was measured with both.
  bool sums(const fsdp::Action& action) const {
    using fsdp::Op;
    return on_gpu_ && options_.reduction == comm::Reduction::tree && ranks_of(action) > 1 &&
           (action.op == Op::reduce || action.op == Op::reduce_scatter || action.op == Op::all_reduce);
  }

  /// Where CPUs compute, they copy too.
  bool copies_by_itself(const fsdp::Action& action) const {
    return !on_gpu_ && (action.op == fsdp::Op::h2d || action.op == fsdp::Op::d2h);
  }

  /// A collective of one rank, unless it is in place.
  bool is_copy(const fsdp::Action& action) const {
    if (action.ranks == fsdp::Ranks::self) return false;
    const int ranks = ranks_of(action);
    const auto *input = action.find(fsdp::Slot::input), *output = action.find(fsdp::Slot::output);
    return ranks == 1 && input != nullptr && output != nullptr && input->buffer != output->buffer;
  }

  /// What reads its inputs and writes its outputs once.
  void local(const fsdp::Action& action, CountingOperations& device) const {
    for (const auto& operand : action.operands) {
      if (operand.slot != fsdp::Slot::input && operand.slot != fsdp::Slot::output) continue;
      device.counted[Term::memory_bytes] +=
          (operand.access == fsdp::Access::both ? 2.0 : 1.0) * static_cast<double>(tensor(operand).bytes());
    }
    device.counted[Term::kernels] += 1;
  }

  const model::Model& model_;
  const fsdp::EngineOptions& options_;
  const fsdp::Program& program_;
  const device::OperationSizes& sizes_;
  int shards_, replicas_;
  bool on_gpu_;
  AttentionKernels kernels_;
};

}  // namespace

Terms& Terms::operator+=(const Terms& other) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += other.values[i];
  return *this;
}

double seconds_of(const Terms& amounts, const Terms& costs) {
  double seconds = 0;
  for (std::size_t i = 0; i < amounts.values.size(); ++i) seconds += amounts.values[i] * costs.values[i];
  return seconds;
}

AttentionKernels attention_kernels(comm::Backend backend, device::GpuAttention attention,
                                   bool deterministic) {
  if (backend != comm::Backend::nccl || attention == device::GpuAttention::native)
    return AttentionKernels::native;
  return deterministic ? AttentionKernels::deterministic : AttentionKernels::any_order;
}

Terms amounts_of(const device::Operation& operation, AttentionKernels attention) {
  Counter counter(attention);
  std::visit(counter, operation);
  counter.amounts[Term::kernels] = 1;
  return counter.amounts;
}

std::vector<ActionWork> work_of_step(const model::Model& model, const fsdp::EngineOptions& options,
                                     const fsdp::DeviceMesh& mesh, const fsdp::CompiledModel& compiled,
                                     const device::OperationSizes& sizes, comm::Backend backend,
                                     AttentionKernels attention) {
  const StepCounter counter(model, options, mesh, compiled, sizes, backend == comm::Backend::nccl, attention);
  std::vector<ActionWork> work;
  for (const auto& action : compiled.step.actions) work.push_back(counter.of(action));
  return work;
}

ComputeParts parts_of(const std::vector<ActionWork>& work, const Terms& costs) {
  ComputeParts parts;
  for (const auto& action : work) {
    if (action.communicates) continue;
    const double host = action.amounts[Term::host_memory_bytes] * costs[Term::host_memory_bytes];
    parts.host_optimizer += host;
    if (action.recomputes || action.optimizes) {
      (action.recomputes ? parts.recomputed : parts.optimizer) += seconds_of(action.amounts, costs) - host;
      continue;
    }
    for (int i = 0; i < kTerms; ++i) {
      const auto term = static_cast<Term>(i);
      double& part = term < Term::attention_forward ? parts.products
                     : term < Term::memory_bytes    ? parts.attention
                     : term == Term::kernels        ? parts.kernels
                                                    : parts.memory;
      part += action.amounts[term] * costs[term];
    }
  }
  return parts;
}

}  // namespace llampi::plan
