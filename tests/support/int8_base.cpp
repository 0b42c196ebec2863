// SPDX-License-Identifier: Apache-2.0
#include "support/int8_base.hpp"

#include <algorithm>
#include <cmath>

#include "llampi/core/half.hpp"

namespace llampi::test {

// A quotient or product of two float32 numbers that is rounded to float64 and then to float32 is what rounding once gives.
template <class Float>
void round_to_blocks(std::vector<Float>& values) {
  constexpr std::size_t kBlock = 128;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    double largest = 0;
    for (std::size_t i = begin; i < begin + kBlock; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(static_cast<float>(values[i]))));
    const double scale = static_cast<float>(largest / 127);
    for (std::size_t i = begin; i < begin + kBlock; ++i) {
      const auto quotient = static_cast<float>(static_cast<double>(static_cast<float>(values[i])) / scale);
      values[i] = scale == 0 ? Float{0} : static_cast<float>(std::nearbyint(quotient) * scale);
    }
  }
}
template void round_to_blocks(std::vector<float>&);
template void round_to_blocks(std::vector<double>&);

bool is_kept_in_int8(const std::string& name, const std::vector<std::int64_t>& shape) {
  const bool adapter = name.find("lora_") != std::string::npos;
  return shape.size() == 2 && name.find("layers.") != std::string::npos && !adapter;
}

void round_base(const model::Parameter& parameter, std::vector<double>& values) {
  if (parameter.adapter) return;
  if (is_kept_in_int8(parameter.name, parameter.shape)) return round_to_blocks(values);
  for (double& x : values) x = from_bfloat16(to_bfloat16(static_cast<float>(x)));
}

oracle::Fixture int8_fixture() {
  auto fixture = oracle::load("lora_all");
  fixture.config.hidden_size = 64;
  fixture.config.intermediate_size = 96;
  fixture.config.query_heads = 4;
  fixture.config.key_value_heads = 2;
  fixture.config.head_dim = 16;
  return fixture;
}

}  // namespace llampi::test
