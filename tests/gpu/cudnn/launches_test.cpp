// SPDX-License-Identifier: Apache-2.0
// What is launched for an attention, in which pieces.
#include <gmock/gmock.h>

#include "emulator/seams/attention_graphs.hpp"
#include "gpu/attention_launches.hpp"
#include "gpu/gpu_fixture.hpp"
#include "support/device_operations.hpp"

namespace llampi::test {
namespace {

using device::cuda::CudnnProblem;
using device::cuda::Direction;
using ::testing::ElementsAre;

std::vector<Launch> launches(const Layout& layout, device::AttentionShape shape, std::int64_t attention_room,
                             Direction direction, bool deterministic = true) {
  std::string why;
  const auto device = make_gpu({.deterministic = deterministic}, why);
  const OperationCase op = attention(layout, shape, attention_room);
  Session session(*device, DType::bfloat16);
  emulator::take_attention_launches();
  op.backward(session, op.inputs, normal(layout.tokens(), shape.query_cols(), "dy"), Accumulate::no);
  return take_launches(direction);
}

constexpr device::AttentionShape kShape{4, 2, 16};
constexpr std::int64_t kHead = std::int64_t{128} * 128 * 2;  // dP of a head of at most 128 tokens

TEST(Launches, OfSequencesAreFewerSequencesFirst) {
  const Layout layout{"four sequences", {20, 20, 20, 20}};
  const auto backward = [&](std::int64_t heads) {
    return launches(layout, kShape, heads * kHead, Direction::backward);
  };
  EXPECT_THAT(backward(16), ElementsAre(Launch{4, 20, 2}));
  EXPECT_THAT(backward(15), ElementsAre(Launch{2, 20, 2}, Launch{2, 20, 2}));
  EXPECT_EQ(backward(4), (std::vector<Launch>(4, {1, 20, 2})));
  EXPECT_EQ(backward(2), (std::vector<Launch>(8, {1, 20, 1})));
  EXPECT_THAT(backward(1), ElementsAre()) << "a group of heads was split";
  EXPECT_THAT(launches(layout, kShape, 0, Direction::forward), ElementsAre(Launch{4, 20, 2}));
  EXPECT_THAT(launches(layout, kShape, 0, Direction::backward, false), ElementsAre(Launch{4, 20, 2}));
}

// The long one alone takes the memory of its square: short ones do not take it too.
TEST(Launches, OfALongDocumentAndShortOnes) {
  Layout layout{"one of 8000 tokens and 60 short ones", {}};
  for (std::int32_t i = 0; i < 60; ++i) layout.lengths.push_back(1 + i % 6);
  layout.lengths.insert(layout.lengths.begin() + 30, 8000);
  const device::AttentionShape shape{1, 1, 8};
  const std::int64_t room = std::int64_t{8064} * 8064 * 2;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    EXPECT_THAT(launches(layout, shape, room, direction),
                ElementsAre(Launch{64, 128, 1, true}, Launch{1, 8000, 1, true}));
  }
}

TEST(Launches, OfDocumentsAreThoseOfOneClassTogether) {
  const Layout layout{"documents", {3, 130, 5, 600, 128, 129, 1, 512}};
  EXPECT_THAT(launches(layout, kShape, std::int64_t{1} << 30, Direction::backward),
              ElementsAre(Launch{8, 128, 2, true}, Launch{2, 512, 2, true}, Launch{2, 512, 2, true},
                          Launch{2, 600, 2, true}));
  // Heads by heads are only those of which all heads have no room.
  EXPECT_THAT(launches(layout, kShape, std::int64_t{2} * 640 * 640 * 2, Direction::backward),
              ElementsAre(Launch{8, 128, 2, true}, Launch{1, 512, 1, true}, Launch{1, 512, 1, true},
                          Launch{1, 512, 1, true}, Launch{1, 600, 1, true}, Launch{1, 512, 1, true},
                          Launch{1, 512, 1, true}, Launch{1, 512, 1, true}, Launch{1, 600, 1, true}));
}

// Of sequences that are much longer than the documents in them.
TEST(Launches, AreForTheDocumentsThatThereAre) {
  const std::int64_t room = 4 * 4 * kHead;  // all heads of four short documents
  const auto backward = [&](int short_ones, std::int32_t last) {
    Layout layout{
        .name = "documents", .lengths = std::vector<std::int32_t>(short_ones, 128), .seq_len = 2048};
    if (last > 0) layout.lengths.push_back(last);
    return launches(layout, kShape, room, Direction::backward);
  };
  EXPECT_EQ(backward(16, 0), (std::vector<Launch>(4, {4, 128, 2, true})));
  EXPECT_EQ(backward(11, 640), (std::vector<Launch>(3, {4, 128, 2, true})))
      << "the long one is left to others";
}

// A class of documents that a window holds entirely has none, whose kernels may be faster.
TEST(Launches, OfShortDocumentsAreWithoutTheWindow) {
  std::string why;
  const auto device = make_gpu({.deterministic = true}, why);
  const OperationCase op = attention({"documents", {3, 130, 5, 600}}, {4, 2, 16, 128});
  Session session(*device, DType::bfloat16);
  emulator::take_attention_launches();
  op.forward(session, op.inputs);
  std::vector<std::int64_t> windows;
  for (const CudnnProblem& p : emulator::take_attention_launches()) windows.push_back(p.window);
  EXPECT_THAT(windows, ElementsAre(0, 128, 128));
}

}  // namespace
}  // namespace llampi::test
