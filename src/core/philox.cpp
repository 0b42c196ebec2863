// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/philox.hpp"

#include "llampi/core/normal.hpp"

namespace llampi {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

RandomStream::RandomStream(std::uint64_t seed, std::string_view purpose)
    : key_(seed), purpose_(14695981039346656037U) {
  for (const char c : purpose)
    purpose_ = (purpose_ ^ static_cast<unsigned char>(c)) * 1099511628211U;  // FNV-1a
}

std::array<std::uint32_t, 4> RandomStream::block(std::uint64_t index) const {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(purpose_), static_cast<std::uint32_t>(purpose_ >> 32)},
                {static_cast<std::uint32_t>(key_), static_cast<std::uint32_t>(key_ >> 32)});
}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  const auto r = block(index);
  return (std::uint64_t{r[1]} << 32) | r[0];
}

double RandomStream::normal(std::uint64_t index) const {
  const auto r = block(index);
  return standard_normal<ScalarArithmetic>((std::uint64_t{r[1]} << 32) | r[0],
                                           (std::uint64_t{r[3]} << 32) | r[2]);
}

}  // namespace llampi
