// SPDX-License-Identifier: Apache-2.0
#include "selfcheck/device_check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "llampi/core/float8.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/device/sum_of_squares.hpp"
#include "llampi/model/eager_runner.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/optim/adamw.hpp"
#include "selfcheck/numbers.hpp"

namespace llampi::selfcheck {
namespace {

constexpr std::uint64_t kSeed = 20240607;
constexpr std::int64_t kFirstSample = 5;  // of the batch: without a number nothing is dropped

// What rounding explains. Sums of up to 1000 terms in float32 are off by about sqrt(1000) roundings of 2^-24,
// fast exponentials by a few. Between the operands of a layer and any of its results there are at most eight
// tensors that are kept in `dtype`, the result included (gradient of the heads, probabilities, scores, qkv,
// twice with RoPE, norm, residual). Rounding one of them to nearest changes it by less than its unit
// roundoff u, relative to its norm, and what is linear in it by about as much: eight roundings by less than
// 8 u, which they reach only if all errors have one direction.
constexpr double kSums = 64 * 0x1p-24;
constexpr double kRoundings = 8;
// With adapters there are more of them: the thin product, what dropout leaves or adds of it, and the sum that each of the
// adapters of q, k and v adds to.
constexpr double kAdapterRoundings = 5;
// AdamW is a dozen float32 operations on each element.
constexpr double kUpdate = 16 * 0x1p-24;

Numbers normal(std::int64_t count, const std::string& purpose, double mean, double deviation) {
  const RandomStream random(kSeed, purpose);
  Numbers numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(mean + deviation * random.normal(i));
  return numbers;
}

model::LlamaConfig small_llama(const DeviceCheckOptions& options) {
  model::LlamaConfig config;
  config.vocab_size = 1027;  // odd, and so large that a GPU computes the loss as that of a real vocabulary
  const bool in_blocks = options.fp8 && options.fp8->scales == model::Fp8Scales::block;
  config.hidden_size = in_blocks ? 256 : 128;
  config.intermediate_size = in_blocks ? 384 : 176;
  config.layers = 1;
  // All heads together are as wide as products in blocks can take.
  config.query_heads =
      in_blocks ? std::max<std::int64_t>(4, device::kFp8Block / std::gcd(device::kFp8Block, options.head_dim))
                : 4;
  config.key_value_heads = config.query_heads / 2;
  config.head_dim = options.head_dim;
  config.max_position_embeddings = options.seq_len;
  config.architecture = options.architecture;
  if (options.window > 0) config.windows = {options.window};
  return config;
}

/// Where the second document of a sequence begins.
std::int64_t border_of_documents(const DeviceCheckOptions& options) { return options.seq_len / 3; }

/// Random tokens and labels, every fourth of which is none, so that GPUs too pack the rows of the head; each sequence is two documents, but the last one.
device::HostBatch make_check_batch(const DeviceCheckOptions& options, std::int64_t vocabulary) {
  const std::int64_t tokens = options.sequences * options.seq_len, cut = border_of_documents(options);
  device::HostBatch batch(tokens);
  const RandomStream random(kSeed, "check tokens");
  const auto token = [&](std::int64_t i) {
    return static_cast<std::int32_t>(random.bits(i) % static_cast<std::uint64_t>(vocabulary));
  };
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t position = t % options.seq_len;
    const bool starts = position == 0 || (position == cut && t / options.seq_len + 1 < options.sequences);
    if (starts) batch.cu_seqlens()[batch.documents++] = static_cast<std::int32_t>(t);
    const std::int32_t begin = batch.cu_seqlens()[batch.documents - 1];
    batch.tokens()[t] = token(t);
    const bool has_label = t % 4 != 3;
    batch.labels()[t] = has_label ? token(tokens + t) : -1;
    batch.positions()[t] = static_cast<std::int32_t>(t) - begin;
    batch.valid_labels += has_label ? 1 : 0;
  }
  batch.cu_seqlens()[batch.documents] = static_cast<std::int32_t>(tokens);
  return batch;
}

/// The same without a border inside the sequences.
device::HostBatch without_documents(device::HostBatch batch, const DeviceCheckOptions& options) {
  batch.cut_into_documents(options.seq_len);
  return batch;
}

/// The gradients of the first attention of a small Llama, with so much room for its backward pass.
class AttentionGradients {
 public:
  AttentionGradients(device::Device& device, const model::Model& model, const DeviceCheckOptions& options,
                     std::int64_t attention_room)
      : runner_(model, device, {options.sequences, options.seq_len, 0, attention_room}, options.dtype),
        seq_len_(options.seq_len),
        dtype_(options.dtype),
        attention_room_(attention_room) {
    for (std::size_t p = 0; p < model.parameters().size(); ++p) {
      const auto& parameter = model.parameters()[p];
      give(runner_.parameter(p), parameter.name, parameter.shape.size() == 2 ? 0.1 : 1);
    }
    given_ = runner_.make(dtype_, runner_.residual_gradient().rows, runner_.residual_gradient().cols);
    give(given_, "gradient", 1);
  }

  /// How the device says that it computes them, before it does.
  std::string announced(const device::HostBatch& batch) {
    device::Device& device = runner_.device();
    const device::AttentionShape shape = runner_.spec(kLayer).attention.value();
    const std::int64_t tokens = batch.token_count();
    const std::int64_t bytes =
        device.sizes().attention_backward_workspace(shape, tokens, seq_len_, dtype_, attention_room_);
    device::op::AttentionBackward operation{};
    operation.documents.count = batch.documents;
    operation.documents.max_seqlen = seq_len_;
    operation.documents.lengths = batch.lengths();
    operation.shape = shape;
    operation.qkv = {nullptr, dtype_, tokens, shape.qkv_cols()};
    operation.workspace = {nullptr, DType::int32, 1, bytes / size_of(DType::int32)};
    operation.attention_room = attention_room_;
    device.prepare(operation);
    return device.describe();
  }

  /// What the backward pass leaves, by name.
  std::vector<std::pair<std::string, Numbers>> gradients(const model::Model& model,
                                                         const device::HostBatch& batch) {
    device::Device& device = runner_.device();
    runner_.upload(batch, 1);
    for (std::size_t layer = 0; layer <= kLayer; ++layer) runner_.forward(layer);
    device.run(device::op::Copy{.source = given_, .destination = runner_.residual_gradient()});
    runner_.backward(kLayer, Accumulate::no);
    std::vector<std::pair<std::string, Numbers>> result;
    for (const auto& use : runner_.spec(kLayer).parameters) {
      const auto p = static_cast<std::size_t>(use.parameter);
      result.emplace_back(model.parameters()[p].name, download_numbers(device, runner_.gradient(p)));
    }
    result.emplace_back("the input", download_numbers(device, runner_.residual_gradient()));
    return result;
  }

 private:
  static constexpr std::size_t kLayer = 1;  // after the embedding

  void give(Tensor tensor, const std::string& purpose, double deviation) {
    upload_numbers(runner_.device(), rounded(normal(tensor.elements(), purpose, 0, deviation), dtype_),
                   tensor);
  }

  model::EagerRunner runner_;
  std::int64_t seq_len_;
  DType dtype_;
  std::int64_t attention_room_;
  Tensor given_;
};

/// Bytes of dP for a query head of a sequence: whole tiles of 128 x 128 numbers of 16 bits (device/cuda/attention_sizes.hpp).
std::int64_t dp_of_head(std::int64_t seq_len) {
  const std::int64_t rows = (seq_len + 127) / 128 * 128;
  return rows * rows * 2;
}

/// Both sides of a comparison, with equal operands.
class Comparison {
 public:
  Comparison(device::Device& device, device::Device& judge, const DeviceCheckOptions& options)
      : dtype_(options.dtype),
        model_(model::make_llama(small_llama(options), options.fp8, options.lora)),
        device_(*model_, device, {options.sequences, options.seq_len}, options.dtype),
        judge_(*model_, judge, {options.sequences, options.seq_len}, options.judge_dtype),
        allowed_(options.fp8    ? fp8_rounding_explains(options.dtype)
                 : options.lora ? adapters_rounding_explains(options.dtype, options.tf32)
                                : rounding_explains(options.dtype, options.tf32)),
        has_adapters_(options.lora.has_value()) {
    set_parameters();
    device::HostBatch batch = make_check_batch(options, model_->vocabulary());
    batch.set_first_sample(kFirstSample);
    for (auto* side : {&device_, &judge_}) side->upload(batch, 1);
  }

  std::vector<ComparedTensor> run() {
    const std::size_t last = model_->layers().size() - 1;
    for (std::size_t layer = 0; layer < last; ++layer) forward(layer);
    loss("loss of an evaluation", [&](auto& side) { side.forward(last); });
    loss("loss", [&](auto& side) { side.backward(last, Accumulate::no); });
    gradients(last);
    for (std::size_t layer = last; layer-- > 0;) {
      // Every other layer adds to what is there.
      backward(layer, layer % 2 == 1 ? Accumulate::yes : Accumulate::no);
    }
    update();
    if (has_adapters_) cast_blocks();
    return std::move(compared_);
  }

 private:
  void set_parameters() {
    for (std::size_t p = 0; p < model_->parameters().size(); ++p) {
      const auto& parameter = model_->parameters()[p];
      const bool matrix = parameter.shape.size() == 2;
      const double deviation = matrix ? 1 / std::sqrt(static_cast<double>(parameter.shape[1])) : 0.25;
      const bool norm = !matrix && !parameter.name.ends_with(".bias");
      give(rounded(normal(parameter.elements(), parameter.name, norm ? 1 : 0, deviation), dtype_),
           [&](auto& side) { return side.parameter(p); });
      give_gradient(p);
    }
  }

  /// Something to add to.
  void give_gradient(std::size_t p) {
    const auto& parameter = model_->parameters()[p];
    give(normal(parameter.elements(), "gradient " + parameter.name, 0, 1),
         [&](auto& side) { return side.gradient(p); });
  }

  template <class View>
  void give(const Numbers& numbers, const View& view) {
    for (auto* side : {&device_, &judge_}) upload_numbers(side->device(), numbers, view(*side));
  }

  /// Compares a tensor and returns the judge's.
  template <class View>
  Numbers compare(const std::string& name, const View& view) {
    Numbers judged = download_numbers(judge_.device(), view(judge_));
    note(name, distance(download_numbers(device_.device(), view(device_)), judged), allowed_);
    return judged;
  }
  void note(const std::string& name, double error, double allowed) {
    compared_.push_back({name, error, allowed});
  }

  /// A saved tensor. One in 8 bits is compared as what it stands for, with its scale, which follows it; of the scales
  /// themselves, one may be twice the other, where the largest magnitude is at the border.
  void compare_saved(std::size_t layer, std::size_t i, const std::string& name) {
    const auto saved = [&](std::size_t item) {
      return [layer, item](auto& side) { return side.saved(layer, item); };
    };
    if (!is_float8(device_.saved(layer, i).dtype)) return compare_and_share(name, saved(i));
    Numbers values[2];
    for (auto* side : {&device_, &judge_}) {
      const double inverse = download_numbers(side->device(), side->saved(layer, i + 1))[1];
      values[side == &judge_] = download_numbers(side->device(), side->saved(layer, i));
      for (double& value : values[side == &judge_]) value *= inverse;
    }
    note(name, distance(values[0], values[1]), allowed_);
    give(download_numbers(judge_.device(), judge_.saved(layer, i)), saved(i));
    give(download_numbers(judge_.device(), judge_.saved(layer, i + 1)), saved(i + 1));
  }

  /// Compares it and gives both sides the judge's, so that errors do not add up from layer to layer.
  template <class View>
  void compare_and_share(const std::string& name, const View& view) {
    const Tensor mine = view(device_);
    give(rounded(compare(name, view), mine.dtype), view);
  }

  void forward(std::size_t layer) {
    const auto& spec = device_.spec(layer);
    for (auto* side : {&device_, &judge_}) side->forward(layer);
    compare_and_share(fmt::format("output of {}", spec.module),
                      [&](auto& side) { return side.output(layer); });
    for (std::size_t i = 0; i < spec.saved.size(); ++i)
      compare_saved(layer, i, fmt::format("{} of {}", spec.saved[i].name, spec.module));
  }

  /// What is not computed again does not pass for what the forward pass has left.
  void forget_recomputed(std::size_t layer) {
    const auto& spec = device_.spec(layer);
    for (std::size_t i = 0; i < spec.saved.size(); ++i) {
      if (!spec.saved[i].recomputed) continue;
      const auto elements = static_cast<std::size_t>(device_.saved(layer, i).elements());
      give(Numbers(elements, std::numeric_limits<double>::quiet_NaN()),
           [&](auto& side) { return side.saved(layer, i); });
    }
  }

  template <class Run>
  void loss(const std::string& name, const Run& run) {
    Numbers sums;
    for (auto* side : {&device_, &judge_}) {
      const double before = side->loss_sum();
      run(*side);
      sums.push_back(side->loss_sum() - before);
    }
    note(name, distance({sums[0]}, {sums[1]}), allowed_);
  }

  void backward(std::size_t layer, Accumulate accumulate) {
    const auto& saved = device_.spec(layer).saved;
    if (std::ranges::any_of(saved, &model::BufferSpec::recomputed)) backward_that_recomputes(layer);
    for (auto* side : {&device_, &judge_}) side->backward(layer, accumulate);
    gradients(layer);
  }

  /// Afterwards all is as it was.
  void backward_that_recomputes(std::size_t layer) {
    const auto& spec = device_.spec(layer);
    const auto saved = [layer](std::size_t i) {
      return [layer, i](auto& side) { return side.saved(layer, i); };
    };
    const auto gradient = [](auto& side) { return side.residual_gradient(); };
    std::vector<Numbers> kept;
    for (std::size_t i = 0; i < spec.saved.size(); ++i)
      kept.push_back(download_numbers(judge_.device(), judge_.saved(layer, i)));
    const Numbers kept_gradient = download_numbers(judge_.device(), judge_.residual_gradient());
    forget_recomputed(layer);
    for (auto* side : {&device_, &judge_}) side->backward(layer, Accumulate::no, true);
    for (std::size_t i = 0; i < spec.saved.size(); ++i) {
      if (!spec.saved[i].recomputed) continue;
      compare_saved(layer, i, fmt::format("{} of {}, recomputed", spec.saved[i].name, spec.module));
    }
    gradients(layer, ", recomputed");
    for (std::size_t i = 0; i < spec.saved.size(); ++i) give(kept[i], saved(i));
    give(kept_gradient, gradient);
    for (const auto& use : spec.parameters) give_gradient(static_cast<std::size_t>(use.parameter));
  }

  void gradients(std::size_t layer, const std::string& suffix = "") {
    const auto& spec = device_.spec(layer);
    for (const auto& use : spec.parameters) {
      const auto p = static_cast<std::size_t>(use.parameter);
      const auto& parameter = model_->parameters()[p];
      if (has_adapters_ && !parameter.adapter) continue;  // frozen
      compare(fmt::format("gradient of {}{}", parameter.name, suffix),
              [&](auto& side) { return side.gradient(p); });
    }
    if (layer == 0) return;  // nothing comes before it
    compare_and_share(
        fmt::format("gradient before {}{}", spec.module.empty() ? "the head" : spec.module, suffix),
        [&](auto& side) { return side.residual_gradient(); });
  }

  void update();

  /// What a base in 8 bits is read as: more blocks than a thread block takes at once, and no multiple of that.
  void cast_blocks() {
    constexpr std::int64_t kBlocks = 75;
    const Numbers numbers = normal(kBlocks * kInt8BlockElements, "check blocks of 8 bits", 0, 1);
    const std::vector<float> values(numbers.begin(), numbers.end());
    std::vector<Int8Block> blocks(kBlocks);
    to_int8_blocks(values.data(), std::ssize(values), blocks.data());
    const auto cast = [&](model::EagerRunner& side) {
      device::Device& device = side.device();
      const Tensor from = side.make(DType::int8_blocks, kBlocks, kInt8BlockElements);
      const Tensor to = side.make(side.residual_gradient().dtype, kBlocks, kInt8BlockElements);
      device.upload(from, blocks.data(), device::Stream::compute);
      device.run(device::op::Cast{.source = from, .destination = to});
      return download_numbers(device, to);
    };
    note("cast from blocks of 8 bits", distance(cast(device_), cast(judge_)),
         unit_roundoff(dtype_) + unit_roundoff(DType::float32));
  }

  DType dtype_;
  std::unique_ptr<model::Model> model_;
  model::EagerRunner device_, judge_;
  double allowed_;
  bool has_adapters_;
  std::vector<ComparedTensor> compared_;
};

/// Two updates of a shard with a gradient of norm about 100, clipped to 1; the second begins with moments.
struct Update {
  static constexpr std::int64_t kElements = 5000;

  Update(model::EagerRunner& on, DType dtype) : side(on), device(on.device()) {
    const DType wide = on.gradient_dtype();
    for (Tensor* tensor : {&gradient, &master, &exp_avg, &exp_avg_sq}) *tensor = on.make(wide, 1, kElements);
    shard = on.make(wide == DType::float64 ? wide : dtype, 1, kElements);
    maximum = on.make(DType::int32, 1, 1);
    sum = on.make(DType::int64, 1, device::kSumOfSquaresNumbers);
    scalars = on.make(DType::float64, 1, optim::kStepScalars);
    upload_numbers(device, rounded(normal(kElements, "check master", 0, 1), DType::float32), master);
  }

  void step(int t) {
    const double clip = 1;
    auto* const values = static_cast<optim::StepScalars*>(scalars.data);
    const optim::StepScalars inputs{.update = optim::scalars_of_update(constants, t, 1e-2)};
    const Numbers g = normal(kElements, fmt::format("check gradient {}", t), 0, 1.5);
    upload_numbers(device, rounded(g, DType::float32), gradient);
    device.upload(scalars, &inputs, device::Stream::compute);
    device.run(device::op::Zero{.destination = maximum});
    device.run(device::op::Zero{.destination = sum});
    device.run(
        device::op::SumSquares{.gradient = gradient, .ranges = ranges, .sum = sum, .maximum = maximum});
    device.run(device::op::FinishNorm{
        .sum = sum, .max_norm = clip, .loss_scale = &values->loss_scale, .scalars = &values->update});
    device.run(device::op::AdamW{.gradient = gradient,
                                 .ranges = ranges,
                                 .beta1 = constants.beta1,
                                 .beta2 = constants.beta2,
                                 .eps = constants.eps,
                                 .scalars = &values->update,
                                 .master = master,
                                 .exp_avg = exp_avg,
                                 .exp_avg_sq = exp_avg_sq,
                                 .shard = shard});
    device.synchronize(device::Stream::compute);
  }

  double largest() {
    float value = 0;
    device.download(&value, maximum, device::Stream::compute);
    device.synchronize(device::Stream::compute);
    return static_cast<double>(value);
  }
  device::UpdateScalars result() {
    optim::StepScalars result;
    device.download(&result, scalars, device::Stream::compute);
    device.synchronize(device::Stream::compute);
    return result.update;
  }

  model::EagerRunner& side;
  device::Device& device;
  optim::AdamWConstants constants;
  std::vector<device::UpdateRange> ranges = {{.begin = 0, .end = 2048, .weight_decay = 0.1},
                                             {.begin = 2048, .end = 4999, .learning_rate_factor = 0.5}};
  Tensor gradient, master, exp_avg, exp_avg_sq, shard, maximum, sum, scalars;
};

void Comparison::update() {
  Update mine(device_, dtype_), judged(judge_, dtype_);
  for (const int t : {1, 2}) {
    for (auto* side : {&mine, &judged}) side->step(t);
    const device::UpdateScalars result = mine.result(), expected = judged.result();
    note(fmt::format("largest gradient of update {}", t), distance({mine.largest()}, {judged.largest()}), 0);
    note(fmt::format("gradient norm of update {}", t), distance({result.grad_norm}, {expected.grad_norm}),
         kUpdate);
    note(fmt::format("clip coefficient of update {}", t),
         distance({result.clip_coefficient}, {expected.clip_coefficient}), kUpdate);
  }
  const auto compare_state = [&](const char* name, Tensor Update::*state, double allowed) {
    note(fmt::format("AdamW's {}", name),
         distance(download_numbers(mine.device, mine.*state), download_numbers(judged.device, judged.*state)),
         allowed);
  };
  compare_state("master", &Update::master, kUpdate);
  compare_state("exp_avg", &Update::exp_avg, kUpdate);
  compare_state("exp_avg_sq", &Update::exp_avg_sq, kUpdate);
  compare_state("shard", &Update::shard, kUpdate + unit_roundoff(dtype_));
}

}  // namespace

double rounding_explains(DType dtype, bool tf32) {
  const DType products =
      tf32 && dtype == DType::float32 ? DType::float16 : dtype;  // as many bits of mantissa
  return kSums + kRoundings * unit_roundoff(products);
}

double adapters_rounding_explains(DType dtype, bool tf32) {
  const double usual = rounding_explains(dtype, tf32);
  return usual + kAdapterRoundings / kRoundings * (usual - kSums);
}

model::LoraConfig lora_check_config(std::int64_t rank, double dropout) {
  return {.rank = rank, .alpha = static_cast<double>(rank) / 2, .dropout = dropout, .targets = "proj"};
}

/// What differs by `d` of itself before a cast is on the other side of a border between two numbers of the format with
/// a probability of about d over their distance s, and then differs by s: by the root of d s in the mean. At most 2^-2
/// of a number is the distance to the next in float8_e5m2.
double fp8_rounding_explains(DType dtype) {
  const double before = rounding_explains(dtype, false);
  return before + std::sqrt(before * 0x1p-2);
}

DeviceCheckOptions fp8_check_options(DType dtype, const model::Fp8Recipe& recipe) {
  const bool in_blocks = recipe.scales == model::Fp8Scales::block;
  return {.dtype = dtype,
          .sequences = in_blocks ? 4 : 2,
          .seq_len = in_blocks ? 160 : 144,  // documents are no multiples of attention's blocks of rows
          .fp8 = recipe};
}

std::vector<ComparedTensor> compare_devices(device::Device& device, device::Device& judge,
                                            const DeviceCheckOptions& options) {
  return Comparison(device, judge, options).run();
}

/// What devices announce is that of CudnnAttention::describe().
std::vector<ComparedPieces> compare_pieces(device::Device& device, const DeviceCheckOptions& options) {
  const std::int64_t border = border_of_documents(options);
  require(device::LengthClasses::of(border) < device::LengthClasses::of(options.seq_len - border),
          "documents of two classes of lengths");
  const model::LlamaConfig config = small_llama(options);
  const auto model = model::make_llama(config);
  const std::int64_t groups = config.key_value_heads, head = dp_of_head(options.seq_len);
  const std::int64_t sequence = config.query_heads * head, group = sequence / groups;
  AttentionGradients whole(device, *model, options, options.sequences * sequence),
      by_sequences(device, *model, options, sequence), by_heads(device, *model, options, group);

  const device::HostBatch documents = make_check_batch(options, model->vocabulary());
  std::vector<ComparedPieces> compared;
  for (const bool packed : {false, true}) {
    const device::HostBatch batch = packed ? documents : without_documents(documents, options);
    // Documents that are launched apart are not counted.
    const std::int64_t apart = packed ? 1 : options.sequences;
    const auto announces = [](const std::string& text, std::int64_t count) {
      const std::string words = count == 1 ? "backward " : fmt::format("backward in {} pieces", count);
      return (text.find(words) != std::string::npos) == (count > 1);
    };
    const std::string of_whole = whole.announced(batch), of_heads = by_heads.announced(batch);
    const auto why_none = [&](const std::string& announced, std::int64_t count) -> std::string {
      if (!announces(of_whole, 1)) return of_whole;
      if (!announces(of_heads, apart * groups)) return of_heads;  // it knows no pieces
      return announces(announced, count) ? "" : announced;
    };
    std::vector<std::pair<std::string, Numbers>> expected;
    for (auto* pieces : {&by_sequences, &by_heads}) {
      ComparedPieces& result = compared.emplace_back();
      result.kind = fmt::format("{} {}", packed ? "documents" : "sequences",
                                pieces == &by_sequences ? "one by one" : "by heads");
      result.why_none = why_none(pieces->announced(batch), pieces == &by_sequences ? apart : apart * groups);
      if (!result.why_none.empty()) continue;
      if (expected.empty()) expected = whole.gradients(*model, batch);
      const auto actual = pieces->gradients(*model, batch);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        result.tensors.push_back(
            {fmt::format("gradient of {} through attention over {}", expected[i].first, result.kind),
             distance(actual[i].second, expected[i].second), 0});
      }
    }
  }
  return compared;
}

std::string failure_of(const std::vector<ComparedTensor>& compared) {
  const auto failed = [](const ComparedTensor& tensor) { return !tensor.passed(); };
  const auto first = std::find_if(compared.begin(), compared.end(), failed);
  if (first == compared.end()) return {};
  const auto others = std::count_if(compared.begin(), compared.end(), failed) - 1;
  return fmt::format(
      "{}: relative error {:.2g}, and rounding explains {:.2g}{}", first->name, first->error, first->allowed,
      others == 0 ? "" : fmt::format(" ({} more of {} tensors differ too)", others, compared.size()));
}

}  // namespace llampi::selfcheck
