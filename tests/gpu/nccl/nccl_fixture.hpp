// SPDX-License-Identifier: Apache-2.0
// Collectives between GPUs: NCCL on real ones, one rank on each or several on one, and on emulated ones. One
// source, built twice, as tests/gpu.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_fixture.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/nccl.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/core/half.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {

struct GpuRank {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<comm::World> world;  ///< over NCCL
};
/// Null where there is no GPU; `why` then says what is missing. Collective. In emulated_rank.cpp and
/// plugin_rank.cpp.
GpuRank make_gpu_rank(comm::World& mpi, std::string& why,
                      const comm::NcclOptions& options = {.patience = std::chrono::minutes(1)});

/// A vector on the GPU, and one element behind it that nobody may touch.
class Buffer {
 public:
  /// All NaN, or -7.
  Buffer(device::Device& device, comm::World& world, DType dtype, std::int64_t elements);

  Tensor view() const { return view_; }
  void set(const std::vector<double>& values);
  /// After all that is on `stream`. Checks the element behind.
  std::vector<double> get(device::Stream stream = device::Stream::compute) const;

 private:
  device::Device& device_;
  device::Memory memory_;
  Tensor view_;
};

/// A GPU and a world of its own for every test. Skipped where there is no GPU.
class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    rank_ = make_gpu_rank(mpi, why, options());
    if (!rank_.world) GTEST_SKIP() << "no GPU to test: " << why;
  }
  void TearDown() override { work_orders().front().set(); }

  virtual comm::NcclOptions options() const { return {.patience = std::chrono::minutes(1)}; }
  device::Device& device() { return *rank_.device; }
  comm::World& world() { return *rank_.world; }
  std::unique_ptr<comm::Group> group_of_all() { return world().group(all); }

  /// A workspace as large as it has to be, and no larger.
  Buffer scatter_room(const comm::Group& group, std::int64_t whole_elements, DType dtype) {
    return room(comm::reduce_scatter_workspace(comm::Backend::nccl, whole_elements, group.size(), dtype,
                                               options().reduction, options().exchange_bytes));
  }
  Buffer reduce_room(const comm::Group& group, std::int64_t elements, DType dtype) {
    return room(comm::all_reduce_workspace(comm::Backend::nccl, elements, group.size(), dtype,
                                           options().reduction, options().exchange_bytes));
  }

  comm::World& mpi = test_world();
  std::vector<int> all = first_ranks();

 private:
  Buffer room(std::int64_t bytes) {
    return {device(), world(), DType::float16, bytes / size_of(DType::float16)};
  }
  static std::vector<int> first_ranks() {
    std::vector<int> ranks;
    for (int rank = 0; rank < test_world().size(); ++rank) ranks.push_back(rank);
    return ranks;
  }

  GpuRank rank_;
};

// Numbers are whole and small: sums of 15 ranks are exact in any order and in every dtype, bfloat16 included.

inline double number(int rank, std::int64_t index, int salt = 0) {
  return static_cast<double>((rank * 7 + index * 13 + index / 33 + salt * 5) % 35 - 17);
}
inline double sum_over(const std::vector<int>& ranks, std::int64_t index, int salt = 0) {
  double sum = 0;
  for (const int rank : ranks) sum += number(rank, index, salt);
  return sum;
}

inline std::vector<double> numbers(int rank, std::int64_t elements, int salt = 0) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < elements; ++i) values.push_back(number(rank, i, salt));
  return values;
}

}  // namespace llampi::test
