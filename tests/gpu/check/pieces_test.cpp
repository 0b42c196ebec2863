// SPDX-License-Identifier: Apache-2.0
// What `llampi check` compares of attention in pieces, where cuDNN's graphs compute it.
#include <gmock/gmock.h>

#include "emulator/seams/attention_graphs.hpp"
#include "gpu/attention_launches.hpp"
#include "gpu/gpu_fixture.hpp"
#include "selfcheck/device_check.hpp"

namespace llampi::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class CheckOfPieces : public ::testing::Test {
 protected:
  void compare(const device::GpuOptions& options) {
    std::string why;
    const auto gpu = make_gpu(options, why);
    if (broken_room_ > 0) break_gradients(*gpu);
    emulator::take_attention_launches();
    compared_ = selfcheck::compare_pieces(
        *gpu, {.dtype = DType::bfloat16, .head_dim = 16, .seq_len = selfcheck::kPiecesSeqLen});
    launches_ = take_launches(device::cuda::Direction::backward);
  }
  std::vector<std::string> failures() const {
    std::vector<std::string> failures;
    for (const auto& pieces : compared_) failures.push_back(selfcheck::failure_of(pieces.tensors));
    return failures;
  }

  std::vector<selfcheck::ComparedPieces> compared_;
  std::vector<Launch> launches_;
  std::int64_t broken_room_ = 0;  ///< of dP: with it, one gradient of the last token is wrong in its last bit

 private:
  void break_gradients(device::Device& gpu) const {
    gpu.decorate([this, &gpu](const device::Operation& operation, const std::function<void()>& issue) {
      issue();
      const auto* const o = std::get_if<device::op::AttentionBackward>(&operation);
      if (o == nullptr || o->attention_room != broken_room_) return;
      const std::int64_t begin = (o->dqkv.rows - 1) * o->dqkv.cols;
      const Tensor one = o->dqkv.slice(begin, begin + 1);
      std::uint16_t bits = 0;
      gpu.download(&bits, one, device::Stream::compute);
      gpu.synchronize(device::Stream::compute);
      bits ^= 1U;
      gpu.upload(one, &bits, device::Stream::compute);
      gpu.synchronize(device::Stream::compute);
    });
  }
};

constexpr std::int64_t kDpOfGroup = std::int64_t{2} * 384 * 384 * 2, kDpOfSequence = 2 * kDpOfGroup;

// Documents of 100, 200 and 300 tokens: launches for 128 and for 300. By heads are those that have no room for all.
TEST_F(CheckOfPieces, LaunchesPiecesOfSeveralTilesAndTwoClassesOfLengths) {
  compare({.deterministic = true});
  const std::vector<Launch> expected = {
      {2, 300, 2},       {1, 300, 2},       {1, 300, 2},       {1, 300, 1},       {1, 300, 1},
      {1, 300, 1},       {1, 300, 1},                           // sequences
      {4, 128, 2, true}, {2, 300, 2, true},                     // documents
      {4, 128, 2, true}, {1, 300, 2, true}, {1, 300, 2, true},  // in pieces
      {4, 128, 2, true}, {1, 300, 1, true}, {1, 300, 1, true}, {1, 300, 1, true}, {1, 300, 1, true}};
  EXPECT_THAT(launches_, ElementsAreArray(expected));
  ASSERT_EQ(compared_.size(), 4U);
  for (const auto& pieces : compared_) {
    EXPECT_EQ(pieces.why_none, "") << pieces.kind;
    EXPECT_EQ(pieces.tensors.size(), 6U) << pieces.kind;
  }
  EXPECT_THAT(failures(), Each(IsEmpty()));
}

TEST_F(CheckOfPieces, FailsWhereOneHasAnotherBit) {
  broken_room_ = kDpOfSequence;
  compare({.deterministic = true});
  const auto differs =
      StartsWith("gradient of model.layers.0.input_layernorm.weight through attention over ");
  ASSERT_EQ(compared_.size(), 4U);
  EXPECT_EQ(compared_[0].kind, "sequences one by one");
  EXPECT_EQ(compared_[2].kind, "documents one by one");
  EXPECT_THAT(failures(), ElementsAre(differs, IsEmpty(), differs, IsEmpty()));
  broken_room_ = kDpOfGroup;
  compare({.deterministic = true});
  EXPECT_THAT(failures(), ElementsAre(IsEmpty(), differs, IsEmpty(), differs));
}

TEST_F(CheckOfPieces, SaysWhereThereAreNone) {
  compare({.deterministic = false});
  ASSERT_EQ(compared_.size(), 4U);
  for (const auto& pieces : compared_) {
    EXPECT_THAT(pieces.why_none, HasSubstr("attention cuDNN 9.19.0")) << pieces.kind;
    EXPECT_THAT(pieces.tensors, IsEmpty());
  }
  EXPECT_THAT(launches_, IsEmpty()) << "the whole was compared with itself";
}

}  // namespace
}  // namespace llampi::test
