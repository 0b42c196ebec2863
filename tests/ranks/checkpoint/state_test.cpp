// SPDX-License-Identifier: Apache-2.0
// What a checkpoint keeps of states of other dtypes, of frozen parameters, and of the loss scale.
#include <hdf5.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checksums.hpp"
#include "llampi/core/error.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/shared_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

SamplePieces even(int parts, const SampleOptions& options = {}) {
  return SamplePieces::even(parts, test_rank(), test_ranks(), options);
}

/// The sample with some tensors frozen.
SampleOptions frozen(std::initializer_list<int> tensors) {
  SampleOptions options;
  for (const int tensor : tensors) options.tensors[tensor].optimizer = false;
  return options;
}

class State : public ::testing::Test {
 protected:
  fs::path file() const { return folder_.path() / "step.h5"; }
  void save(const SamplePieces& pieces) const {
    save_checkpoint(test_world(), sample_device(), file(),
                    {pieces.tensors(), pieces.pieces(), sample_state(), {}});
  }
  TrainingState load(const SamplePieces& pieces, bool missing_moments_are_zero = false) const {
    return load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces(),
                           {.missing_moments_are_zero = missing_moments_are_zero});
  }
  std::string refusal(const SamplePieces& pieces, bool missing_moments_are_zero = false) const {
    return message_of<UserError>([&] { load(pieces, missing_moments_are_zero); });
  }
  /// Rank 0 makes the file one without checksums, and changes it.
  void change(const std::function<void(hid_t)>& work) const {
    wait_for_all_ranks();
    on_rank_0([&] {
      const io::Hdf5Lock lock;
      const io::hdf5::File opened(
          io::hdf5::check(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "H5Fopen"));
      if (has_checksums(opened.id())) {
        io::hdf5::check(H5Adelete_by_name(opened.id(), ".", "checksum_block_elements", H5P_DEFAULT),
                        "H5Adelete_by_name");
      }
      work(opened.id());
    });
  }

 private:
  SharedFolder folder_;
};

// Among the sample's bits are NaNs, infinities and what is subnormal in each format.
TEST_F(State, OfEveryDtypeIsReadFromEveryOther) {
  std::vector<SampleOptions> all;
  for (const DType model : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const DType moment : {DType::float32, DType::bfloat16, DType::float16})
      all.push_back({.model = model, .moment = moment});
  }
  for (const auto& saved : all) {
    save(even(3, saved).fill());
    for (const auto& loaded : all) {
      const auto pieces = even(2, loaded);
      load(pieces);
      EXPECT_EQ(pieces.differences(saved), 0)
          << to_string(saved.model) << " and " << to_string(saved.moment) << " loaded as "
          << to_string(loaded.model) << " and " << to_string(loaded.moment);
    }
  }
}

TEST_F(State, OtherDtypesAreRefused) {
  auto pieces = even(2);
  for (auto& piece : pieces.pieces()) piece.model.dtype = DType::int32;
  EXPECT_THAT(message_of<Error>([&] { save(pieces); }),
              HasSubstr("not float32, bfloat16, float16 or int8_blocks"));
}

TEST_F(State, FrozenTensorsHaveNoMoments) {
  const auto saved = frozen({0, 3, 5});
  save(even(3, saved).fill());
  const auto summary = read_checkpoint_summary(file());
  EXPECT_TRUE(summary.has_optimizer);
  ASSERT_EQ(summary.tensors.size(), saved.tensors.size());
  for (const auto& tensor : saved.tensors) {
    const auto match = std::find_if(summary.tensors.begin(), summary.tensors.end(),
                                    [&](const TensorInfo& other) { return other.name == tensor.name; });
    ASSERT_NE(match, summary.tensors.end()) << tensor.name;
    EXPECT_EQ(match->optimizer, tensor.optimizer) << tensor.name;
  }
  for (const auto& loaded : {saved, frozen({0, 1, 3, 4, 5}), SampleOptions{.moments = false}}) {
    const auto pieces = even(2, loaded);
    EXPECT_EQ(fields(load(pieces)), fields(sample_state()));
    EXPECT_EQ(pieces.differences(saved), 0);
  }
}

TEST_F(State, OfFrozenTensorsAloneHasNoOptimizer) {
  const auto saved = frozen({0, 1, 2, 3, 4, 5});
  save(even(3, saved).fill());
  EXPECT_FALSE(read_checkpoint_summary(file()).has_optimizer);
  const auto pieces = even(2, saved);
  load(pieces);
  EXPECT_EQ(pieces.differences(), 0);
}

// Also where only one rank, which is not the one that reads the file first, asks for them.
TEST_F(State, MissingMomentsAreRefusedOrZero) {
  const auto saved = frozen({0, 4});
  save(even(3, saved).fill());
  const bool last = test_rank() == test_ranks() - 1;
  for (const int parts : {1, 2}) {
    const auto some = [&](const SampleOptions& options) {
      return parts == 1 ? SamplePieces::even(1, last ? 0 : 1, 2, options) : even(parts, options);
    };
    EXPECT_THAT(refusal(some({})), AllOf(HasSubstr(file().string()),
                                         HasSubstr("no optimizer state of model.embed_tokens.weight, row,"),
                                         HasSubstr("frozen"), HasSubstr("moments_may_be_missing = true")));
    EXPECT_THAT(refusal(some(frozen({0}))), Not(HasSubstr("embed_tokens")));
    for (const DType moment : {DType::float32, DType::bfloat16}) {
      const auto pieces = some({.moment = moment});
      load(pieces, true);
      EXPECT_EQ(pieces.differences(saved), 0);
    }
  }
}

// Frozen parameters explain why a tensor has no moments, not why a file has none, or one of the two.
TEST_F(State, OtherGapsAreRefusedAllTheSame) {
  save(even(3, {.moments = false}).fill());
  EXPECT_THAT(refusal(even(2), true), HasSubstr("no optimizer state to continue with"));

  save(even(3, frozen({0})).fill());
  change([](hid_t id) {
    io::hdf5::check(H5Ldelete(id, "/optimizer/exp_avg_sq/column", H5P_DEFAULT), "H5Ldelete");
  });
  EXPECT_THAT(refusal(even(2), true), AllOf(HasSubstr("/optimizer/exp_avg_sq"), HasSubstr("missing column")));
  EXPECT_THAT(refusal(even(2, frozen({0, 3}))), HasSubstr("missing column"));

  change([](hid_t id) {
    io::hdf5::check(
        H5Lmove(id, "/optimizer/exp_avg/row", id, "/optimizer/exp_avg/other", H5P_DEFAULT, H5P_DEFAULT),
        "H5Lmove");
  });
  EXPECT_THAT(refusal(even(2), true), AllOf(HasSubstr("/optimizer/exp_avg "), HasSubstr("unexpected other")));
}

TEST_F(State, PiecesMustHaveTheMomentsOfTheirTensor) {
  const auto refused = [&](const SampleOptions& pieces, const SampleOptions& tensors) {
    const auto filled = even(2, pieces).fill();
    const auto message = message_of<Error>([&] {
      save_checkpoint(test_world(), sample_device(), file(),
                      {tensors.tensors, filled.pieces(), sample_state(), {}});
    });
    EXPECT_THAT(message, AllOf(HasSubstr("internal error"), HasSubstr("optimizer")));
    EXPECT_FALSE(fs::exists(file()));
  };
  refused({}, frozen({5}));
  refused(frozen({5}), {});
}

TEST_F(State, OfFilesFromBeforeTheLossScaleIsRead) {
  save(even(2).fill());
  change([](hid_t id) {
    for (const char* name : {"loss_scale", "loss_scale_good_steps"})
      io::hdf5::check(H5Adelete_by_name(id, "state", name, H5P_DEFAULT), "H5Adelete_by_name");
  });
  auto expected = sample_state();
  expected.loss_scale = 0;
  expected.loss_scale_good_steps = 0;
  EXPECT_EQ(fields(load(even(2))), fields(expected));
  EXPECT_EQ(fields(read_checkpoint_summary(file()).state), fields(expected));
}

}  // namespace
}  // namespace llampi::test
