// SPDX-License-Identifier: Apache-2.0
// A model into which an adapter is merged, read in ranges.

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "checkpoint/tensor_list.hpp"
#include "llampi/checkpoint/adapter.hpp"
#include "llampi/core/error.hpp"
#include "llampi/device/merge_low_rank.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

class MergedWeights final : public WeightsSource {
 public:
  MergedWeights(std::unique_ptr<WeightsSource> base, Adapter adapter)
      : base_(std::move(base)), adapter_(std::move(adapter)) {
    const std::int64_t rank = adapter_.info.config.rank;
    const auto& of_base = base_->tensors();
    merged_.resize(of_base.size());
    std::vector<TensorInfo> expected;
    for (const auto& module : adapter_.info.config.modules) {
      const auto weight = std::ranges::find(of_base, module + ".weight", &TensorInfo::name);
      if (weight == of_base.end() || weight->shape.size() != 2) {
        throw_user_error(
            "{} has no linear layer {}, but {} has an adapter of it; use the adapter with its own model",
            base_->path().string(), module, adapter_.path.string());
      }
      expected.push_back({model::lora_a_of(module), {rank, weight->shape[1]}, false});
      expected.push_back({model::lora_b_of(module), {weight->shape[0], rank}, false});
      merged_[static_cast<std::size_t>(weight - of_base.begin())] =
          Pair{index_of(model::lora_a_of(module)), index_of(model::lora_b_of(module)), weight->shape[1]};
    }
    check_tensors(*adapter_.weights, expected);
  }

  fs::path path() const override { return base_->path(); }
  const std::vector<TensorInfo>& tensors() const override { return base_->tensors(); }

  void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const override {
    base_->read(tensor, begin, elements, values);
    const auto& pair = merged_[static_cast<std::size_t>(tensor)];
    if (!pair || elements == 0) return;
    const std::int64_t rank = adapter_.info.config.rank;
    const std::int64_t first = begin / pair->cols, rows = (begin + elements - 1) / pair->cols + 1 - first;
    std::vector<float> b(static_cast<std::size_t>(rows * rank));
    adapter_.weights->read(pair->b, first * rank, rows * rank, b.data());
    const std::lock_guard lock(mutex_);  // of the matrix that is kept
    if (kept_ != pair->a) {
      a_.resize(static_cast<std::size_t>(rank * pair->cols));
      adapter_.weights->read(pair->a, 0, rank * pair->cols, a_.data());
      kept_ = pair->a;
    }
    device::merge_low_rank({.weight = {values, static_cast<std::size_t>(elements)},
                            .begin = begin - first * pair->cols,
                            .cols = pair->cols,
                            .a = a_,
                            .b = b,
                            .scale = adapter_.info.config.scale()});
  }

 private:
  struct Pair {
    int a = 0, b = 0;  ///< tensors of the adapter
    std::int64_t cols = 0;
  };

  int index_of(const std::string& name) const {
    const auto& tensors = adapter_.weights->tensors();
    return static_cast<int>(std::ranges::find(tensors, name, &TensorInfo::name) - tensors.begin());
  }

  std::unique_ptr<WeightsSource> base_;
  Adapter adapter_;
  std::vector<std::optional<Pair>> merged_;  ///< by tensor of the base
  mutable std::mutex mutex_;
  mutable std::vector<float> a_;  ///< of the tensor that was read last
  mutable int kept_ = -1;
};

}  // namespace

std::unique_ptr<WeightsSource> merge(std::unique_ptr<WeightsSource> base, Adapter adapter) {
  return std::make_unique<MergedWeights>(std::move(base), std::move(adapter));
}

}  // namespace llampi::checkpoint
