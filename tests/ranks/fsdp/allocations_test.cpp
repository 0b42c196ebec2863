// SPDX-License-Identifier: Apache-2.0
// Nothing of a tensor's size is allocated inside a step: this program's operator new counts.
//
// What MPI and the matrix-product library take with malloc is not seen here.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/int8_base.hpp"
#include "support/mpi_test.hpp"
#include "support/trajectory.hpp"

namespace {

// The smallest tensor of a layer in the case below, a norm's statistics aside, has 8 KiB.
constexpr std::size_t kLarge = 4096;

std::atomic<std::int64_t> large_allocations = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes >= kLarge) ++large_allocations;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded)) return memory;
  throw std::bad_alloc();
}

/// Not inlined: GCC would see a `new` that ends in free(), and warn.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new[](std::size_t bytes) { return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace llampi::test {
namespace {

using namespace fsdp;

TEST(Allocations, NoneOfATensorsSizeInsideAStep) {
  auto& world = test_world();
  const auto whole = oracle::load("mqa"), adapters = int8_fixture();
  std::vector<TrajectoryOptions> all;
  const std::vector<Offload> offloads = {{},  // in turns
                                         {.optimizer = true},
                                         {.optimizer = true, .host_step = true},
                                         {.optimizer = true, .params = true, .residuals = true},
                                         {.optimizer = true, .params = true, .host_step = true}};
  for (const auto strategy : {Strategy::full_shard, Strategy::no_shard, Strategy::hybrid_shard}) {
    if (strategy == Strategy::hybrid_shard && test_ranks() != 4) continue;
    for (const auto checkpointing : {Checkpointing::none, Checkpointing::full, Checkpointing::selective,
                                     Checkpointing::offload, Checkpointing::feed_forward}) {
      for (const bool unsharded : {false, true}) {
        for (const auto& precision :
             {Precision{}, Precision{.param = DType::bfloat16, .reduce = DType::bfloat16},
              Precision{.param = DType::bfloat16, .master = DType::bfloat16, .moment = DType::bfloat16}}) {
          all.push_back({.strategy = strategy,
                         .accumulation = 2,
                         .shard_group_size = strategy == Strategy::hybrid_shard ? 2 : 0,
                         .unsharded = unsharded,
                         .checkpointing = checkpointing,
                         .precision = precision,
                         .offload = offloads[all.size() % 5]});
        }
      }
    }
  }
  for (const Offload& offload : offloads) {
    all.push_back({.precision = {.frozen = DType::bfloat16, .int8_base = true},
                   .offload = offload,
                   .saves_frozen = false});
  }
  for (const auto& options : all) {
    SCOPED_TRACE(fmt::format("{} checkpointing {} unsharded {} param {} reduce {} moment {} int8 {}",
                             to_string(options.strategy), to_string(options.checkpointing), options.unsharded,
                             to_string(options.precision.param), to_string(options.precision.reduce),
                             to_string(options.precision.moment), options.precision.int8_base));
    TrainingRun run(world, options.precision.int8_base ? adapters : whole, options);
    for (std::int64_t t = 1; t <= 5; ++t) {
      const auto inputs = run.inputs(t);
      const std::int64_t before = large_allocations;
      run.engine().step(inputs.micro_batches, inputs.step);
      const std::int64_t during = large_allocations - before;
      EXPECT_EQ(t >= 3 ? during : 0, 0) << "step " << t;
    }
    EXPECT_GT(large_allocations, 0) << "operator new is this program's own";
  }
}

}  // namespace
}  // namespace llampi::test
