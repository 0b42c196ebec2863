// SPDX-License-Identifier: Apache-2.0
// Deterministic attention in pieces has the bits of the whole, whatever the room that it is given.
#include <cmath>

#include "gpu/gpu_fixture.hpp"
#include "support/device_operations.hpp"

namespace llampi::test {
namespace {

constexpr device::AttentionShape kPieceShape{8, 2, 32};

/// Of dP: query heads of a sequence of at most `longest` tokens, in whole tiles.
std::int64_t dp_bytes(std::int64_t heads, std::int64_t longest) {
  const std::int64_t rows = (longest + 127) / 128 * 128;
  return heads * rows * rows * 2;
}

/// All of dP, one sequence of a piece, one key/value head, and none: then native kernels compute.
std::vector<std::int64_t> rooms(const Layout& layout) {
  return {std::int64_t{1} << 30, dp_bytes(kPieceShape.query_heads, layout.longest()),
          dp_bytes(kPieceShape.query_heads / kPieceShape.key_value_heads, layout.longest()), 0};
}

/// Of every class of lengths, in whole tiles and not.
std::vector<Layout> piece_layouts() {
  return {{"one sequence", {256}},
          {"four sequences", {64, 64, 64, 64}},
          {"three unaligned sequences", {100, 100, 100}},
          {"documents of one class", {70, 33, 25}},
          {"documents of two classes", {5, 128, 129, 1, 200, 1, 17, 128, 31}},
          {"a long one and short ones", {3, 520, 4, 100}}};
}

class PiecesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    device_ = make_gpu({.deterministic = true}, why);
    if (!device_) GTEST_SKIP() << "no GPU to test: " << why;
  }

  Values gradient(const OperationCase& op, const Values& dy) {
    Session session(*device_, DType::bfloat16);
    return op.backward(session, op.inputs, dy, Accumulate::no)[0];
  }

  std::unique_ptr<device::Device> device_;
};

TEST_F(PiecesTest, HaveTheBitsOfTheWhole) {
  for (const Layout& layout : piece_layouts()) {
    const OperationCase whole = attention(layout, kPieceShape);
    const auto reference = device::make_reference_device();
    Session session(*reference, DType::float64, Weights::trained, DType::bfloat16);
    const Values dy = normal(layout.tokens(), kPieceShape.query_cols(), "dy");
    const Values expected = whole.backward(session, whole.inputs, dy, Accumulate::no)[0];
    const double tolerance = 2 * kEpsilon * std::sqrt(static_cast<double>(whole.terms)) +
                             2 * whole.roundings * unit_roundoff(DType::bfloat16);
    const Values bits = gradient(whole, dy);
    for (const std::int64_t room : rooms(layout)) {
      SCOPED_TRACE(fmt::format("{}, {} bytes of dP, {}", layout.name, room, device_->describe()));
      const Values actual = gradient(attention(layout, kPieceShape, room), dy);
      EXPECT_TRUE(close(actual, expected, tolerance));
      if (room > 0) {
        EXPECT_TRUE(same_bits(actual, bits));
      }
    }
  }
}

// What a document's gradient is does not depend on which others are computed with it.
TEST_F(PiecesTest, OfDocumentsDoNotDependOnTheOthers) {
  const Layout all{"documents", {5, 128, 129, 1, 200, 1, 17, 128, 31}}, some{"documents", {5, 128, 507}};
  const Values dy = normal(all.tokens(), kPieceShape.query_cols(), "dy");
  const Values of_all = gradient(attention(all, kPieceShape), dy),
               of_some = gradient(attention(some, kPieceShape), dy);
  const std::size_t same = static_cast<std::size_t>((5 + 128) * of_all.cols);
  for (std::size_t i = 0; i < same; ++i) ASSERT_EQ(of_all.data[i], of_some.data[i]) << i;
}

// One for which there is no room is computed by other kernels, with these and with their bits.
TEST_F(PiecesTest, OfDocumentsDoNotDependOnOneThatHasNoRoom) {
  const auto of = [&](std::vector<std::int32_t> lengths, std::int64_t room) {
    const Layout layout{.name = "documents", .lengths = std::move(lengths), .seq_len = 4096};
    return gradient(attention(layout, kPieceShape, room),
                    normal(layout.tokens(), kPieceShape.query_cols(), "dy"));
  };
  const std::int64_t room = dp_bytes(kPieceShape.query_heads, 128);
  const Values with = of({100, 28, 700}, room), without = of({100, 28}, room), native = of({100, 28, 700}, 0);
  const auto first_of_long = static_cast<std::size_t>(128 * with.cols);
  for (std::size_t i = 0; i < with.data.size(); ++i)
    ASSERT_EQ(with.data[i], (i < first_of_long ? without : native).data[i]) << i;
}

}  // namespace
}  // namespace llampi::test
