// SPDX-License-Identifier: Apache-2.0
#include "selfcheck/collectives_check.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/mix.hpp"
#include "selfcheck/numbers.hpp"

namespace llampi::selfcheck {
namespace {

constexpr device::Stream kGather = device::Stream::urgent(0, "gather");
constexpr device::Stream kReduce = device::Stream::urgent(1, "reduce");

// Of a shard: no multiple of anything, and of few ranks more, so that the way of large arrays is taken too.
constexpr std::int64_t kElements = 1027, kWholeElements = 40961;
constexpr int kExactRanks = 256;  // whole numbers up to that are exact in bfloat16

class Collectives {
 public:
  Collectives(comm::World& world, device::Device& device, DType dtype)
      : world_(world),
        device_(device),
        dtype_(dtype),
        ranks_(world.size()),
        elements_(std::max(kElements, kWholeElements / ranks_)) {
    std::vector<int> all(static_cast<std::size_t>(ranks_));
    std::iota(all.begin(), all.end(), 0);
    group_ = world.group(all, {kGather, kReduce});
  }

  std::vector<ComparedTensor> run() {
    const std::int64_t whole_elements = elements_ * ranks_;
    const Tensor shard = make(elements_), whole = make(whole_elements);
    const Tensor scatter =
        workspace(comm::reduce_scatter_workspace(world_.backend(), whole_elements, ranks_, dtype_));
    const Tensor reduce =
        workspace(comm::all_reduce_workspace(world_.backend(), whole_elements, ranks_, dtype_));

    upload(shard, [&](std::int64_t i) { return contribution(world_.rank(), i); });
    group_->all_gather(shard, whole, kGather)->wait(device::Stream::host);
    compare("all-gather", whole,
            [&](std::int64_t i) { return contribution(static_cast<int>(i / elements_), i % elements_); });

    upload(whole, [&](std::int64_t i) { return contribution(world_.rank(), i); });
    group_->reduce_scatter(whole, shard, Accumulate::no, scatter, kReduce)->wait(device::Stream::host);
    compare("reduce-scatter", shard, [&](std::int64_t i) { return sum(world_.rank() * elements_ + i); });

    upload(whole, [&](std::int64_t i) { return contribution(world_.rank(), i); });
    group_->all_reduce(whole, whole, comm::ReduceOp::sum, Accumulate::no, reduce, kReduce)
        ->wait(device::Stream::host);
    compare("all-reduce", whole, [&](std::int64_t i) { return sum(i); });
    return std::move(compared_);
  }

 private:
  Tensor make(std::int64_t elements) { return {allocate(elements * size_of(dtype_)), dtype_, 1, elements}; }
  Tensor workspace(std::int64_t bytes) {
    if (bytes == 0) return {};
    const std::int64_t words = ceil_div(bytes, size_of(DType::int32));
    return {allocate(words * size_of(DType::int32)), DType::int32, 1, words};
  }
  std::byte* allocate(std::int64_t bytes) {
    comm::agree(world_, [&] { memory_.push_back(world_.allocate(bytes)); });
    return memory_.back().data();
  }
  double sum(std::int64_t element) const {
    double sum = 0;
    for (int rank = 0; rank < ranks_; ++rank) sum += contribution(rank, element);
    return sum;
  }
  template <class Value>
  static Numbers numbers(std::int64_t count, const Value& value) {
    Numbers numbers;
    for (std::int64_t i = 0; i < count; ++i) numbers.push_back(value(i));
    return numbers;
  }
  template <class Value>
  void upload(Tensor target, const Value& value) {
    upload_numbers(device_, numbers(target.elements(), value), target);
  }
  template <class Value>
  void compare(const char* name, Tensor result, const Value& value) {
    compared_.push_back({fmt::format("{} over all ranks", name),
                         distance(download_numbers(device_, result), numbers(result.elements(), value)), 0});
  }

  comm::World& world_;
  device::Device& device_;
  DType dtype_;
  int ranks_;
  std::int64_t elements_;  ///< of a shard
  std::unique_ptr<comm::Group> group_;
  std::vector<device::Memory> memory_;  // with windows of the group's communicators, which close first
  std::vector<ComparedTensor> compared_;
};

}  // namespace

double contribution(int rank, std::int64_t element) {
  const auto both = (static_cast<std::uint64_t>(rank) << 40) + static_cast<std::uint64_t>(element);
  return static_cast<double>(mix_bits(both + 0x9E3779B97F4A7C15U) % 3) - 1;
}

std::vector<ComparedTensor> check_collectives(comm::World& world, device::Device& device) {
  auto compared = Collectives(world, device, DType::float32).run();
  if (world.size() <= kExactRanks) {
    for (auto& tensor : Collectives(world, device, DType::bfloat16).run()) {
      tensor.name += ", in bfloat16";
      compared.push_back(tensor);
    }
  }
  return compared;
}

}  // namespace llampi::selfcheck
