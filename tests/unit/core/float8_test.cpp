// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/float8.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "llampi/core/half.hpp"
#include "support/find_above.hpp"

namespace llampi::test {
namespace {

/// tests/oracle/float8_casts.txt, which tests/oracle/make_casts.py wrote.
struct PyTorch {
  struct Format {
    std::string name;
    Float8Format format;
    std::vector<std::uint8_t> casts;    ///< of each bfloat16, clamped before
    std::vector<std::uint32_t> values;  ///< of each byte
  };
  std::vector<Format> formats = {{"float8_e4m3fn", kE4m3, {}, {}}, {"float8_e5m2", kE5m2, {}, {}}};

  PyTorch() {
    const std::string file = "oracle/float8_casts.txt";
    std::string path = find_above("tests/" + file).string();
    if (path.empty()) path = LLAMPI_TEST_DATA "/" + file;
    std::ifstream stream(path);
    EXPECT_TRUE(stream) << path;
    std::string word, name;
    std::size_t runs = 0, count = 0;
    for (auto& format : formats) {
      stream >> word >> name >> runs;
      EXPECT_EQ(word + " " + name, "casts " + format.name);
      for (std::uint32_t byte = 0; runs > 0 && stream >> std::dec >> count >> std::hex >> byte; --runs)
        format.casts.insert(format.casts.end(), count, static_cast<std::uint8_t>(byte));
      stream >> word >> name;
      EXPECT_EQ(word + " " + name, "values " + format.name);
      for (std::uint32_t bits = 0; format.values.size() < 256 && stream >> bits;)
        format.values.push_back(bits);
      stream >> std::dec;
      EXPECT_EQ(format.casts.size(), 65536U) << format.name;
      EXPECT_EQ(format.values.size(), 256U) << format.name;
    }
  }
};

TEST(Float8, CastsOfEveryBfloat16AreThoseOfPyTorch) {
  const PyTorch pytorch;
  ASSERT_FALSE(HasFailure());
  for (const auto& [name, format, casts, values] : pytorch.formats) {
    int nans = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = from_bfloat16(static_cast<std::uint16_t>(bits));
      EXPECT_EQ(to_float8(format, value), casts[bits]) << name << " of " << value << ", bfloat16 " << bits;
      nans += std::isnan(value) ? 1 : 0;
    }
    EXPECT_EQ(nans, 254) << "NaN are among them";
  }
}

/// Of a NaN the sign only: PyTorch carries the fraction over (0x7FF00000 from e4m3; 0x7FC00000 and 0x7FE00000 from
/// e5m2), here each is 0x7FC00000.
TEST(Float8, ValuesOfEveryByteAreThoseOfPyTorch) {
  const PyTorch pytorch;
  ASSERT_FALSE(HasFailure());
  for (const auto& [name, format, casts, values] : pytorch.formats) {
    int nans = 0, infinities = 0;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const float value = from_float8(format, static_cast<std::uint8_t>(byte));
      const auto expected = std::bit_cast<float>(values[byte]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << name << " " << byte;
        EXPECT_EQ(std::signbit(value), std::signbit(expected)) << name << " " << byte;
        ++nans;
      } else {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(value), values[byte]) << name << " " << byte;
      }
      infinities += std::isinf(expected) ? 1 : 0;
    }
    EXPECT_EQ(nans, name == "float8_e5m2" ? 6 : 2);
    EXPECT_EQ(infinities, name == "float8_e5m2" ? 2 : 0);
  }
}

/// Between bfloat16 numbers, too: around the middle of any two neighbours.
TEST(Float8, RoundsToTheNearest) {
  for (const Float8Format format : {kE4m3, kE5m2}) {
    for (std::uint32_t byte = 0; byte < 0x7F; ++byte) {
      const auto low = static_cast<std::uint8_t>(byte), high = static_cast<std::uint8_t>(byte + 1);
      const float here = from_float8(format, low), next = from_float8(format, high);
      if (!std::isfinite(next)) break;
      const float middle = (here + next) / 2;  // exact: one more bit
      for (const float sign : {1.0F, -1.0F}) {
        const auto expect = [&](float value, std::uint8_t expected) {
          EXPECT_EQ(to_float8(format, sign * value), expected | (sign < 0 ? 0x80 : 0))
              << byte << ": " << value;
        };
        expect(here, low);
        expect(middle, byte % 2 == 0 ? low : high);
        expect(std::nextafter(middle, 0.0F), low);
        expect(std::nextafter(middle, INFINITY), high);
      }
    }
  }
}

TEST(Float8, ScalesAreTheLargestThatFit) {
  EXPECT_EQ(from_float8(kE4m3, 0x7E), 448.0F);
  EXPECT_EQ(from_float8(kE5m2, 0x7B), 57344.0F);
  for (const auto& [format, largest] : {std::pair(kE4m3, 448.0), std::pair(kE5m2, 57344.0)}) {
    EXPECT_EQ(float8_scale_exponent(format, 0), 0);
    for (std::uint16_t bits = 1; bits < 0x7F80; ++bits) {  // every positive finite bfloat16
      const float maximum = from_bfloat16(bits);
      const int e = float8_scale_exponent(format, std::bit_cast<std::int32_t>(maximum));
      ASSERT_LE(e, kLargestScaleExponent) << maximum;
      EXPECT_LE(std::ldexp(maximum, e), largest) << maximum;
      EXPECT_TRUE(std::ldexp(maximum, e + 1) > largest || e == kLargestScaleExponent) << maximum;
      EXPECT_EQ(power_of_two(e), std::ldexp(1.0F, e));
    }
  }
  EXPECT_EQ(float8_scale_exponent(kE4m3, std::bit_cast<std::int32_t>(448.0F)), 0);
  EXPECT_EQ(float8_scale_exponent(kE4m3, std::bit_cast<std::int32_t>(450.0F)), -1);
  EXPECT_EQ(float8_scale_exponent(kE5m2, std::bit_cast<std::int32_t>(1.0F)), 15);
  EXPECT_EQ(float8_scale_exponent(kE5m2, std::bit_cast<std::int32_t>(1.875F)), 14);
}

}  // namespace
}  // namespace llampi::test
