// SPDX-License-Identifier: Apache-2.0
// Choices that all ranks make alike.
#include "train/tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "device/cpu/cpu_device.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/device/tuning.hpp"
#include "support/mpi_test.hpp"
#include "support/temporary_folder.hpp"
#include "support/trajectory.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Finds another algorithm to be the fastest than other ranks do.
class AutotunerOfRank final : public device::Autotuner {
 public:
  explicit AutotunerOfRank(std::string key) : key_(std::move(key)) {}
  std::string key() const override { return key_; }
  void adopt(const device::AlgorithmChoices& choices) override { adopted = choices; }
  void measure(bool on) override { measured = measured || on; }
  device::AlgorithmChoices choices() const override {
    return measured ? device::AlgorithmChoices{{"product", fmt::format("algorithm {}", test_world().rank())}}
                    : adopted;
  }
  std::vector<std::string> warnings() const override { return {}; }

  device::AlgorithmChoices adopted;
  bool measured = false;

 private:
  std::string key_;
};

class SharedTuning : public ::testing::Test {
 protected:
  SharedTuning() { setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1); }
  ~SharedTuning() override { unsetenv("XDG_CACHE_HOME"); }

  TunedRun choose(AutotunerOfRank& autotuner, const ChoiceSources& sources = {}) {
    struct TunedDevice final : device::CpuDevice {
      explicit TunedDevice(AutotunerOfRank& of)
          : CpuDevice(1, *device::available_kernels().front()), autotuner_(of) {}
      device::Autotuner* autotuner() override { return &autotuner_; }
      AutotunerOfRank& autotuner_;
    } device(autotuner);
    TrainingRun training(test_world(), fixture_, {});
    return make_choices(test_world(), training.engine(), device, sources, {}, true,
                        Log([this](const std::string& line) { said_ += line + "\n"; }));
  }

  /// run.tuning = off, of a run that continues.
  ChoiceSources off() const {
    return {.files = {cache_ / "checkpoints.json"}, .tuning = {.mode = TuningMode::Mode::off, .file = {}}};
  }
  void keep_with_checkpoint(const device::AlgorithmChoices& products) const {
    keep_choices(off().files.front(), {"a GPU", "any run", products}, Log());
  }

  const TemporaryFolder cache_;  // each rank's own; rank 0's counts
  const oracle::Fixture fixture_ = oracle::load("mqa");
  std::string said_;
};

TEST_F(SharedTuning, IsWhatRankZeroFound) {
  const device::AlgorithmChoices of_rank_0{{"product", "algorithm 0"}};
  AutotunerOfRank first("a GPU");
  EXPECT_EQ(choose(first).products, of_rank_0);
  EXPECT_EQ(first.measured, test_world().rank() == 0);
  EXPECT_EQ(first.adopted, of_rank_0);

  AutotunerOfRank second("a GPU");
  EXPECT_EQ(choose(second).products, of_rank_0);
  EXPECT_FALSE(second.measured) << "it is in the cache of rank 0";
  EXPECT_EQ(second.adopted, of_rank_0);
}

TEST_F(SharedTuning, IsOfEqualGpus) {
  AutotunerOfRank autotuner(test_world().rank() == 0 ? "a GPU" : "another GPU");
  if (test_world().size() == 1) {
    EXPECT_FALSE(choose(autotuner).products.empty());
    return;
  }
  try {
    choose(autotuner);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 has a GPU, and rank 1 has another GPU"));
  }
  EXPECT_THAT(autotuner.adopted, IsEmpty());
}

TEST_F(SharedTuning, IsThatOfTheCheckpointThoughItIsOff) {
  AutotunerOfRank first("a GPU");
  choose(first);  // the cache knows them
  AutotunerOfRank begun("a GPU");
  EXPECT_THAT(choose(begun, off()).products, IsEmpty());
  EXPECT_THAT(begun.adopted, IsEmpty()) << "taken from the cache";
  said_.clear();

  const device::AlgorithmChoices of_rank_0{{"product", "kept by rank 0"}};
  keep_with_checkpoint({{"product", fmt::format("kept by rank {}", test_world().rank())}});
  AutotunerOfRank resumed("a GPU");
  EXPECT_EQ(choose(resumed, off()).products, of_rank_0);
  EXPECT_EQ(resumed.adopted, of_rank_0);
  EXPECT_FALSE(begun.measured || resumed.measured);
  EXPECT_EQ(said_, "");
}

TEST_F(SharedTuning, IsOfUnequalGpusWhereItIsOff) {
  const std::string gpu = test_world().rank() == 0 ? "a GPU" : "another GPU";
  AutotunerOfRank begun(gpu), resumed(gpu);
  EXPECT_THAT(choose(begun, off()).products, IsEmpty());
  EXPECT_EQ(said_, "");
  keep_with_checkpoint({{"product", "kept"}});
  choose(resumed, off());
  const auto warning =
      HasSubstr("rank 1 has another GPU: where one lacks a matrix-product algorithm of the checkpoint, ");
  if (test_world().size() > 1) {
    EXPECT_THAT(said_, warning);
  } else {
    EXPECT_EQ(said_, "");
  }
}

}  // namespace
}  // namespace llampi::test
