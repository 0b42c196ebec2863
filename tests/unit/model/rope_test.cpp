// SPDX-License-Identifier: Apache-2.0
// RoPE frequencies and table against the formula written in another way, and against transformers' numbers.
#include "model/rope.hpp"
#include "llampi/model/llama.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

namespace llampi::test {
namespace {

using namespace model;

LlamaConfig with_rope(std::int64_t head_dim, double theta, std::optional<Llama3Rope> scaling = {}) {
  LlamaConfig config;
  config.vocab_size = 10;
  config.hidden_size = 2 * head_dim;
  config.intermediate_size = 8;
  config.layers = 1;
  config.query_heads = config.key_value_heads = 2;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  config.rope_scaling = scaling;
  return config;
}

/// By wavelengths in tokens, three cases apart, as the scaling was published.
long double by_wavelength(long double frequency, const Llama3Rope& s) {
  const long double wavelength = 2 * std::numbers::pi_v<long double> / frequency;
  const long double context = s.original_max_position_embeddings;
  if (wavelength < context / s.high_freq_factor) return frequency;
  if (wavelength > context / s.low_freq_factor) return frequency / s.factor;
  const long double smooth =
      (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

TEST(Rope, FrequenciesFollowTheFormula) {
  const std::optional<Llama3Rope> scalings[] = {{}, Llama3Rope{}, Llama3Rope{32, 1.5, 5, 300}};
  for (const auto& scaling : scalings) {
    const auto frequencies = rope_frequencies(with_rope(64, 500000, scaling));
    ASSERT_EQ(frequencies.size(), 32U);
    long double plain = 1;
    for (const double frequency : frequencies) {
      const long double expected = scaling ? by_wavelength(plain, *scaling) : plain;
      // A few roundings of float64 here, and the error of the other formula is that of repeated products in
      // long double.
      EXPECT_NEAR(frequency / static_cast<double>(expected), 1, 1e-14);
      plain /= std::pow(500000.0L, 1 / 32.0L);
    }
  }
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
  // transformers 4.57.1, _compute_llama3_parameters, in float32: 1e-6 relative.
  const auto check = [](std::int64_t head_dim, double factor,
                        std::vector<std::pair<std::size_t, double>> expected) {
    const auto frequencies = rope_frequencies(with_rope(head_dim, 500000, Llama3Rope{factor, 1, 4, 8192}));
    for (const auto& [pair, frequency] : expected)
      EXPECT_NEAR(frequencies[pair] / frequency, 1, 1e-6) << pair;
  };
  check(128, 8,  // Llama-3.1-8B
        {{0, 1.0},
         {1, 0.8146172165870667},
         {28, 0.0032114461064338684},
         {29, 0.0021665706299245358},
         {31, 0.0008567514596506953},
         {34, 0.0001785077911335975},
         {35, 9.556212171446532e-05},
         {63, 3.068925877869333e-07}});
  check(64, 32,  // Llama-3.2-1B
        {{1, 0.663601279258728},
         {14, 0.0032114461064338684},
         {15, 0.0012905480107292533},
         {17, 9.708286233944818e-05},
         {18, 1.9461638657958247e-05},
         {31, 9.418306490260875e-08}});
}

TEST(Rope, TableHoldsCosinesThenSines) {
  const auto config = with_rope(6, 100, Llama3Rope{4, 1, 4, 40});
  const auto model = make_llama(config);
  const auto frequencies = rope_frequencies(config);
  const auto specs = model->constants(50, DType::float64);
  ASSERT_EQ(specs.size(), 1U);
  EXPECT_EQ(specs[0].rows, 50);
  EXPECT_EQ(specs[0].cols, 6);
  EXPECT_EQ(specs[0].dtype, DType::float64);
  std::vector<double> wide(300);
  model->fill_constant(0, specs[0], wide.data());

  const auto narrow_spec = model->constants(50, DType::bfloat16)[0];
  ASSERT_EQ(narrow_spec.dtype, DType::float32);
  std::vector<float> narrow(300);
  model->fill_constant(0, narrow_spec, narrow.data());

  for (std::size_t pair = 0; pair < 3; ++pair) {
    // Turning step by step: 50 products, each with an error of a few 1e-16.
    std::complex<double> turned = 1;
    for (std::size_t position = 0; position < 50; ++position) {
      EXPECT_NEAR(wide[6 * position + pair], turned.real(), 1e-13);
      EXPECT_NEAR(wide[6 * position + 3 + pair], turned.imag(), 1e-13);
      turned *= std::exp(std::complex<double>(0, frequencies[pair]));
    }
  }
  // Float32 tables are the float64 ones rounded once: no float32 angle in between.
  for (std::size_t i = 0; i < 300; ++i) EXPECT_EQ(narrow[i], static_cast<float>(wide[i]));
}

}  // namespace
}  // namespace llampi::test
