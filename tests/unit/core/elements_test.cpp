// SPDX-License-Identifier: Apache-2.0
// Numbers of the host as elements of each floating-point dtype.
#include "llampi/core/elements.hpp"

#include <gtest/gtest.h>

namespace llampi::test {
namespace {

constexpr DType kFloats[] = {DType::float64, DType::float32,       DType::bfloat16,
                             DType::float16, DType::float8_e4m3fn, DType::float8_e5m2};

TEST(Elements, AreAsLargeAsTheirDtypeSays) {
  for (const DType dtype : kFloats) {
    with_elements(dtype, [&](auto element, auto, auto) {
      EXPECT_EQ(std::int64_t{sizeof element}, size_of(dtype)) << to_string(dtype);
    });
  }
}

TEST(Elements, AreTheNearestNumbersThatThereAre) {
  for (const DType dtype : kFloats) {
    const double step = dtype == DType::float64 ? 0x1p-52 : 2 * unit_roundoff(dtype);  // from 1 on
    with_elements(dtype, [&](auto, auto narrow, auto widen) {
      for (const double x : {-1.5, 0.0, 1.0, 1 + step, 1.75})
        EXPECT_EQ(static_cast<double>(widen(narrow(x))), x) << to_string(dtype);
      if (dtype == DType::float64) return;
      EXPECT_EQ(static_cast<double>(widen(narrow(1 + 0.25 * step))), 1) << to_string(dtype);
      EXPECT_EQ(static_cast<double>(widen(narrow(1 + 0.75 * step))), 1 + step) << to_string(dtype);
    });
  }
}

TEST(Elements, AreNotThoseOfOtherDtypes) {
  for (const DType dtype : {DType::int64, DType::int32, DType::int8_blocks})
    EXPECT_THROW(with_elements(dtype, [](auto, auto, auto) {}), Error) << to_string(dtype);
}

TEST(Elements, AreHalvesInTwoDtypes) {
  for (const DType dtype : kFloats) EXPECT_EQ(is_half(dtype), size_of(dtype) == 2) << to_string(dtype);
}

}  // namespace
}  // namespace llampi::test
