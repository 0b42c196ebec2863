// SPDX-License-Identifier: Apache-2.0
// What Gemm asks of the library of products, by the emulated one, which refuses what cuBLASLt would; and which
// of its algorithms it takes.
#include "device/cuda/gemm.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "emulator/seams/products.hpp"
#include "emulator/streams.hpp"
#include "llampi/core/float8.hpp"
#include "llampi/core/half.hpp"

namespace llampi::test {
namespace {

using namespace device;
using namespace device::cuda;

using emulator::Algorithm;
using ::testing::HasSubstr;

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {{DType::float32, DType::float32},
                            {DType::bfloat16, DType::bfloat16},
                            {DType::float16, DType::float16},
                            {DType::bfloat16, DType::float32},
                            {DType::float16, DType::float32}};

std::byte* device_memory(std::int64_t bytes) {
  void* data = nullptr;
  if (cudaMalloc(&data, static_cast<std::size_t>(bytes)) != cudaSuccess) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

/// [rows, cols] with rows `stride` elements apart, `offset` elements behind an address that 256 divides.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap = 0, std::int64_t offset = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        memory_(device_memory(size_of(dtype) * (offset + rows * stride_))),
        data_(memory_.get() + offset * size_of(dtype)) {
    for (std::int64_t i = 0; i < rows * stride_; ++i) write(i, std::nanf(""));
  }

  void* data() const { return data_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t stride() const { return stride_; }

  float at(std::int64_t row, std::int64_t col) const { return read(row * stride_ + col); }
  /// Whole numbers of -2 to 2: sums of up to 64 products of them are exact in every dtype.
  void fill(int seed) {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = 0; j < cols_; ++j)
        write(i * stride_ + j, static_cast<float>((i * 7 + j * 3 + i * j + seed) % 5 - 2));
    }
  }
  bool gaps_are_untouched() const {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = cols_; j < stride_; ++j) {
        if (!std::isnan(read(i * stride_ + j))) return false;
      }
    }
    return true;
  }

 private:
  float read(std::int64_t i) const {
    if (is_float8(dtype_)) return from_float8(float8_format(dtype_), static_cast<std::uint8_t>(data_[i]));
    if (dtype_ == DType::float32) {
      float value = 0;
      std::memcpy(&value, data_ + i * 4, 4);
      return value;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, data_ + i * 2, 2);
    return dtype_ == DType::bfloat16 ? from_bfloat16(bits) : from_float16(bits);
  }
  void write(std::int64_t i, float value) {
    if (is_float8(dtype_)) {
      data_[i] = std::byte{to_float8(float8_format(dtype_), value)};
    } else if (dtype_ == DType::float32) {
      std::memcpy(data_ + i * 4, &value, 4);
    } else {
      const std::uint16_t bits = dtype_ == DType::bfloat16 ? to_bfloat16(value) : to_float16(value);
      std::memcpy(data_ + i * 2, &bits, 2);
    }
  }

  struct Free {
    void operator()(std::byte* memory) const { cudaFree(memory); }
  };

  DType dtype_;
  std::int64_t rows_, cols_, stride_;
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* data_;
};

/// What is added to the product.
enum class Added { nothing, c, residual, c_as_residual };
constexpr Added kAdded[] = {Added::nothing, Added::c, Added::residual, Added::c_as_residual};

class GemmTest : public ::testing::Test {
 protected:
  GemmTest() : workspace_(DType::float32, 1, 1 << 16) {
    emulator::take_products();
    emulator::take_searches();
  }
  ~GemmTest() override { emulator::set_usual_algorithms(); }

  void run(Gemm& gemm, const GemmShape& shape, const Matrix& a, const Matrix& b, Matrix& c,
           const void* residual = nullptr, std::int64_t workspace_bytes = 1 << 18) {
    gemm.run(shape, {a.data(), b.data(), c.data(), residual},
             {workspace_.data(), DType::int32, 1, workspace_bytes / 4}, nullptr);
    emulator::run_all();
  }

  /// A product of whole numbers has its exact value.
  void expect_product(Gemm& gemm, GemmShape shape, Added added, std::int64_t gap) {
    SCOPED_TRACE(fmt::format("[{}, {}, {}]{}{} {} to {}, added {}, gap {}", shape.m, shape.n, shape.k,
                             shape.a == Transpose::yes ? " A^T" : "", shape.b == Transpose::yes ? " B^T" : "",
                             to_string(shape.in), to_string(shape.out), static_cast<int>(added), gap));
    const bool at = shape.a == Transpose::yes, bt = shape.b == Transpose::yes;
    Matrix a(shape.in, at ? shape.k : shape.m, at ? shape.m : shape.k, gap);
    Matrix b(shape.in, bt ? shape.n : shape.k, bt ? shape.k : shape.n);
    Matrix c(shape.out, shape.m, shape.n, gap), residual(shape.out, shape.m, shape.n, gap);
    a.fill(1);
    b.fill(2);
    residual.fill(4);
    if (added == Added::c || added == Added::c_as_residual)
      c.fill(4);  // else it is NaN, and must not be read
    shape.a_stride = gap == 0 ? 0 : a.stride();
    shape.c_stride = gap == 0 ? 0 : c.stride();
    shape.accumulate = added == Added::c ? Accumulate::yes : Accumulate::no;
    run(gemm, shape, a, b, c,
        added == Added::residual        ? residual.data()
        : added == Added::c_as_residual ? c.data()
                                        : nullptr);
    for (std::int64_t i = 0; i < shape.m; ++i) {
      for (std::int64_t j = 0; j < shape.n; ++j) {
        float expected = added == Added::nothing ? 0.0F : residual.at(i, j);
        for (std::int64_t l = 0; l < shape.k; ++l)
          expected += (at ? a.at(l, i) : a.at(i, l)) * (bt ? b.at(j, l) : b.at(l, j));
        ASSERT_EQ(c.at(i, j), expected) << i << ", " << j;
      }
    }
    EXPECT_TRUE(c.gaps_are_untouched());
  }

  /// The algorithm of y = x w^T in bfloat16, [4, 8] = [4, 16] [8, 16]^T, with x and the residual so many
  /// elements behind an aligned address.
  Algorithm algorithm_of(Gemm& gemm, Added added, std::int64_t workspace_bytes = 0, std::int64_t x_offset = 0,
                         std::int64_t residual_offset = 0) {
    Matrix x(DType::bfloat16, 4, 16, 0, x_offset), w(DType::bfloat16, 8, 16), y(DType::bfloat16, 4, 8);
    Matrix residual(DType::bfloat16, 4, 8, 0, residual_offset);
    GemmShape shape{.m = 4, .n = 8, .k = 16, .b = Transpose::yes};
    shape.accumulate = added == Added::c ? Accumulate::yes : Accumulate::no;
    const void* const adds = added == Added::residual        ? residual.data()
                             : added == Added::c_as_residual ? y.data()
                                                             : nullptr;
    run(gemm, shape, x, w, y, adds, workspace_bytes);
    const std::vector<emulator::Product> products = emulator::take_products();
    EXPECT_EQ(products.size(), 1U);
    return products.at(0).algorithm;
  }

  Matrix workspace_;
};

// What is added is not scaled, and one algorithm serves every scale.
TEST_F(GemmTest, ProductsAreScaledBeforeTheyAreAdded) {
  Gemm gemm(true, false);
  for (const auto& [in, out] : kTypes) {
    Matrix a(in, 5, 7), b(in, 3, 7), c(out, 5, 3, 2);
    a.fill(1), b.fill(2);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      const GemmShape shape{.m = 5,
                            .n = 3,
                            .k = 7,
                            .b = Transpose::yes,
                            .in = in,
                            .out = out,
                            .accumulate = accumulate,
                            .c_stride = c.stride()};
      for (const float scale : {-1.5F, 0.25F}) {
        c.fill(4);
        gemm.run(shape, {.a = a.data(), .b = b.data(), .c = c.data(), .scale = scale},
                 {workspace_.data(), DType::int32, 1, 1 << 16}, nullptr);
        emulator::run_all();
        Matrix before(out, 5, 3);
        before.fill(4);
        for (std::int64_t i = 0; i < 5; ++i) {
          for (std::int64_t j = 0; j < 3; ++j) {
            float expected = 0;
            for (std::int64_t l = 0; l < 7; ++l) expected += a.at(i, l) * b.at(j, l);
            expected = expected * scale + (accumulate == Accumulate::yes ? before.at(i, j) : 0.0F);
            ASSERT_EQ(c.at(i, j), expected) << i << ", " << j;
          }
        }
        EXPECT_TRUE(c.gaps_are_untouched());
      }
    }
  }
  EXPECT_EQ(emulator::take_searches(), 2 * 5);
}

TEST_F(GemmTest, EveryProductOfEveryDtypeIsNear) {
  Gemm gemm(true, false);
  for (const auto& [in, out] : kTypes) {
    for (const Transpose a : {Transpose::no, Transpose::yes}) {
      for (const Transpose b : {Transpose::no, Transpose::yes}) {
        for (const Added added : kAdded) {
          for (const std::int64_t gap : {0, 3}) {
            for (const auto& [m, n, k] : {std::array{1, 1, 1}, {3, 5, 7}, {16, 8, 24}, {9, 1, 2}, {1, 6, 40}})
              expect_product(gemm, {.m = m, .n = n, .k = k, .a = a, .b = b, .in = in, .out = out}, added,
                             gap);
          }
        }
      }
    }
  }
}

/// C (+)= A B^T in 8 bits, with factors that Matrix has not.
class Fp8GemmTest : public GemmTest {
 protected:
  static GemmShape shape_of(DType a, DType b, DType out, bool fast_accumulation = false) {
    return {.m = 16,
            .n = 48,
            .k = 32,
            .b = Transpose::yes,
            .in = a,
            .out = out,
            .in_b = b,
            .fast_accumulation = fast_accumulation};
  }

  void run(Gemm& gemm, const GemmShape& shape, Matrix& c, const void* residual = nullptr) {
    run(gemm, shape, c, residual, &a_factor_, &b_factor_);
  }
  void run(Gemm& gemm, const GemmShape& shape, Matrix& c, const void* residual, const float* a_factor,
           const float* b_factor, std::int64_t offset = 0) {
    const bool turned = shape.a == Transpose::yes;
    a_ = Matrix(shape.in, turned ? shape.k : shape.m, turned ? shape.m : shape.k, 0, offset);
    b_ = Matrix(shape.in_b.value_or(shape.in), shape.n, shape.k);
    a_.fill(1);
    b_.fill(2);
    gemm.run(shape,
             {.a = a_.data(),
              .b = b_.data(),
              .c = c.data(),
              .residual = residual,
              .a_factor = a_factor,
              .b_factor = b_factor},
             {workspace_.data(), DType::int32, 1, 1 << 16}, nullptr);
    emulator::run_all();
  }

  /// [128, 256] = [128, 384] [256, 384]^T
  static GemmShape shape_in_blocks(Fp8Scaling a, Fp8Scaling b) {
    GemmShape shape = shape_of(DType::float8_e4m3fn, DType::float8_e4m3fn, DType::float32);
    shape.m = 128;
    shape.n = 256;
    shape.k = 384;
    shape.a_scaling = a;
    shape.b_scaling = b;
    return shape;
  }

  Matrix a_{DType::float8_e4m3fn, 1, 1}, b_{DType::float8_e4m3fn, 1, 1};
  alignas(16) float a_factor_ = 0.5F;
  alignas(16) float b_factor_ = 4;
};

/// Factors of a matrix [rows, cols], which are not all alike.
class Factors {
 public:
  Factors(Fp8Scaling scaling, std::int64_t rows, std::int64_t cols)
      : scaling_(scaling),
        shape_(fp8_scale_shape(scaling, rows, cols)),
        matrix_(DType::float32, shape_.rows, shape_.cols) {
    for (std::int64_t i = 0; i < shape_.elements(); ++i) data()[i] = kPowersOfTwo[(i * 5 + i / 7) % 4];
  }
  float* data() const { return reinterpret_cast<float*>(matrix_.data()); }
  float at(std::int64_t row, std::int64_t col) const {
    const bool tiles = scaling_ == Fp8Scaling::tiles;
    return matrix_.at(tiles ? col / 128 : row / 128, tiles ? row : col / 128);
  }

 private:
  static constexpr float kPowersOfTwo[] = {0.5F, 1, 4, 2};
  Fp8Scaling scaling_;
  Fp8ScaleShape shape_;
  Matrix matrix_;
};

constexpr std::pair<DType, DType> kFp8Pairs[] = {{DType::float8_e4m3fn, DType::float8_e4m3fn},
                                                 {DType::float8_e5m2, DType::float8_e4m3fn},
                                                 {DType::float8_e4m3fn, DType::float8_e5m2}};

TEST_F(Fp8GemmTest, ProductsIn8BitsHaveTheirFactors) {
  Gemm gemm(true, false);
  for (const auto& [a, b] : kFp8Pairs) {
    for (const DType out : {DType::bfloat16, DType::float32}) {
      for (const Added added : kAdded) {
        for (const float factor : {0.5F, 8.0F}) {  // another one with the same algorithm
          SCOPED_TRACE(fmt::format("{} {} to {}, added {}", to_string(a), to_string(b), to_string(out),
                                   static_cast<int>(added)));
          a_factor_ = factor;
          GemmShape shape = shape_of(a, b, out);
          Matrix c(out, shape.m, shape.n), residual(out, shape.m, shape.n);
          residual.fill(4);
          if (added == Added::c || added == Added::c_as_residual) c.fill(4);
          shape.accumulate = added == Added::c ? Accumulate::yes : Accumulate::no;
          run(gemm, shape, c,
              added == Added::residual        ? residual.data()
              : added == Added::c_as_residual ? c.data()
                                              : nullptr);
          for (std::int64_t i = 0; i < shape.m; ++i) {
            for (std::int64_t j = 0; j < shape.n; ++j) {
              float sum = 0;
              for (std::int64_t l = 0; l < shape.k; ++l) sum += a_.at(i, l) * b_.at(j, l);
              const float expected = sum * factor * 4 + (added == Added::nothing ? 0 : residual.at(i, j));
              ASSERT_EQ(c.at(i, j), out == DType::float32 ? expected : from_bfloat16(to_bfloat16(expected)));
            }
          }
        }
      }
    }
  }
}

TEST_F(Fp8GemmTest, TilesAndBlocksHaveTheirFactors) {
  Gemm gemm(true, false);
  using enum Fp8Scaling;
  for (const auto& [a, b] : {std::pair{tiles, tiles}, {tiles, blocks}, {blocks, tiles}}) {
    const GemmShape shape = shape_in_blocks(a, b);
    const Factors a_factors(a, shape.m, shape.k), b_factors(b, shape.n, shape.k);
    Matrix c(DType::float32, shape.m, shape.n);
    run(gemm, shape, c, nullptr, a_factors.data(), b_factors.data());
    for (std::int64_t i = 0; i < shape.m; ++i) {
      for (std::int64_t j = 0; j < shape.n; ++j) {
        float sum = 0;
        for (std::int64_t l = 0; l < shape.k; ++l)
          sum += a_.at(i, l) * a_factors.at(i, l) * b_.at(j, l) * b_factors.at(j, l);
        ASSERT_EQ(c.at(i, j), sum) << i << ", " << j;
      }
    }
  }
  EXPECT_EQ(emulator::take_searches(), 3);
  const std::vector<emulator::Product> products = emulator::take_products();
  EXPECT_EQ(products.at(1).asked.first_scaling, blocks);  // B comes first there
  EXPECT_EQ(products.at(1).asked.second_scaling, tiles);
  const auto count = [&](const char* words) {
    return std::ranges::count_if(
        gemm.choices(), [&](const auto& choice) { return choice.first.find(words) != std::string::npos; });
  };
  EXPECT_EQ(count("^T in tiles * "), 2);
  EXPECT_EQ(count("^T in blocks * "), 1);
  EXPECT_EQ(count(" in blocks -> "), 1);
}

TEST_F(Fp8GemmTest, ScalesThatHopperDoesNotMultiplyAreRefused) {
  Gemm gemm(true, false);
  using enum Fp8Scaling;
  const auto try_product = [&](const GemmShape& shape, std::int64_t offset = 0) {
    const Factors a(shape.a_scaling, 128, 512), b(shape.b_scaling, 256, 512);
    Matrix c(shape.out, shape.m, shape.n);
    run(gemm, shape, c, nullptr, a.data() + offset, b.data());
  };
  const GemmShape good = shape_in_blocks(tiles, blocks);
  EXPECT_NO_THROW(try_product(good));
  EXPECT_NO_THROW(try_product(good, 4));
  EXPECT_THROW(try_product(good, 1), Error) << "a factor that is not aligned";
  EXPECT_THROW(try_product(shape_in_blocks(blocks, blocks)), Error);
  EXPECT_THROW(try_product(shape_in_blocks(tensor, tiles)), Error);
  EXPECT_THROW(try_product(shape_in_blocks(blocks, tensor)), Error);
  GemmShape shape = good;
  shape.fast_accumulation = true;
  EXPECT_THROW(try_product(shape), Error);
  for (std::int64_t GemmShape::*side : {&GemmShape::m, &GemmShape::n, &GemmShape::k}) {
    shape = good;
    shape.*side = 64;
    EXPECT_THROW(try_product(shape), Error);
  }
}

TEST_F(Fp8GemmTest, ProductsIn8BitsAreAskedForOnce) {
  Gemm gemm(true, false);
  Matrix c(DType::bfloat16, 16, 48);
  const GemmShape shape = shape_of(DType::float8_e4m3fn, DType::float8_e4m3fn, DType::bfloat16);
  for (int i = 0; i < 3; ++i) run(gemm, shape, c);
  EXPECT_EQ(emulator::take_searches(), 1);
  run(gemm, shape_of(DType::float8_e4m3fn, DType::float8_e4m3fn, DType::bfloat16, true), c);
  run(gemm, shape_of(DType::float8_e5m2, DType::float8_e4m3fn, DType::bfloat16), c);
  run(gemm, shape_of(DType::float8_e4m3fn, DType::float8_e5m2, DType::bfloat16), c);
  EXPECT_EQ(emulator::take_searches(), 3);
  EXPECT_EQ(gemm.choices().size(), 4U);
  EXPECT_EQ(std::ranges::count_if(gemm.choices(),
                                  [](const auto& choice) {
                                    return choice.first.find("fast accumulation") != std::string::npos;
                                  }),
            1);
  const std::vector<emulator::Product> products = emulator::take_products();
  EXPECT_FALSE(products.at(0).asked.fast_accumulation);
  EXPECT_TRUE(products.at(3).asked.fast_accumulation);
}

TEST_F(Fp8GemmTest, WhatHopperDoesNotMultiplyIn8BitsIsRefused) {
  constexpr DType kE4m3 = DType::float8_e4m3fn, kE5m2 = DType::float8_e5m2;
  Gemm gemm(true, false);
  Matrix c(DType::bfloat16, 48, 48), narrow(DType::float16, 48, 48);
  EXPECT_THROW(run(gemm, shape_of(kE5m2, kE5m2, DType::bfloat16), c), Error);
  EXPECT_THROW(run(gemm, shape_of(kE4m3, DType::bfloat16, DType::bfloat16), c), Error);
  EXPECT_THROW(run(gemm, shape_of(kE4m3, kE4m3, DType::float16), narrow), Error);
  const GemmShape good = shape_of(kE4m3, kE4m3, DType::bfloat16);
  GemmShape shape = good;
  shape.b = Transpose::no;
  shape.n = shape.k = 32;
  EXPECT_THROW(run(gemm, shape, c), Error);
  shape = good;
  shape.a = Transpose::yes;
  EXPECT_THROW(run(gemm, shape, c), Error);
  for (std::int64_t GemmShape::*side : {&GemmShape::m, &GemmShape::n, &GemmShape::k}) {
    shape = good;
    shape.*side = 24;
    EXPECT_THROW(run(gemm, shape, c), Error);
  }
  EXPECT_THROW(run(gemm, good, c, nullptr, nullptr, &b_factor_), Error);
  EXPECT_THROW(run(gemm, good, c, nullptr, &a_factor_, nullptr), Error);
  EXPECT_THROW(run(gemm, good, c, nullptr, &a_factor_, &b_factor_, 8), Error);
  EXPECT_NO_THROW(run(gemm, good, c, nullptr, &a_factor_, &b_factor_, 16));
}

TEST_F(GemmTest, AlgorithmsAreAskedForOnce) {
  Gemm gemm(true, false);
  for (int i = 0; i < 3; ++i) expect_product(gemm, {.m = 3, .n = 5, .k = 7}, Added::nothing, 0);
  EXPECT_EQ(emulator::take_searches(), 1);
  expect_product(gemm, {.m = 3, .n = 5, .k = 8}, Added::nothing, 0);
  EXPECT_EQ(emulator::take_searches(), 1);
}

TEST_F(GemmTest, AlgorithmsFitTheAlignmentOfTheMatrices) {
  emulator::set_algorithms({{.alignment = 16}, {.alignment = 2}});
  Gemm gemm(true, false);
  EXPECT_EQ(algorithm_of(gemm, Added::residual).alignment, 16U);
  EXPECT_EQ(algorithm_of(gemm, Added::residual, 0, 1, 0).alignment, 2U);
  EXPECT_EQ(algorithm_of(gemm, Added::residual, 0, 8, 8).alignment, 16U);
  EXPECT_EQ(algorithm_of(gemm, Added::residual, 0, 0, 1).alignment, 2U);
  EXPECT_EQ(algorithm_of(gemm, Added::residual).alignment, 16U);
}

TEST_F(GemmTest, WhereAUnitPutsAParameterDecidesNothing) {
  emulator::set_algorithms({{.alignment = 128}, {.alignment = 64}});
  Gemm gemm(true, false);
  EXPECT_EQ(algorithm_of(gemm, Added::residual).alignment, 64U) << "some are aligned to 128 bytes by chance";
}

TEST_F(GemmTest, AResidualElsewhereNeedsAnAlgorithmForIt) {
  emulator::set_algorithms({{.out_of_place = false}, {.out_of_place = true}});
  Gemm gemm(true, false);
  EXPECT_FALSE(algorithm_of(gemm, Added::nothing).out_of_place);
  EXPECT_FALSE(algorithm_of(gemm, Added::c).out_of_place);
  EXPECT_FALSE(algorithm_of(gemm, Added::c_as_residual).out_of_place);
  EXPECT_TRUE(algorithm_of(gemm, Added::residual).out_of_place);
  EXPECT_FALSE(algorithm_of(gemm, Added::c_as_residual).out_of_place);
}

TEST_F(GemmTest, AResidualElsewhereIsCopiedWhereNoAlgorithmAddsIt) {
  emulator::set_algorithms({{.out_of_place = false}});
  Gemm gemm(true, false);
  for (const auto& [in, out] : kTypes) {
    for (const std::int64_t gap : {0, 3}) {
      expect_product(gemm, {.m = 3, .n = 5, .k = 7, .in = in, .out = out}, Added::residual, gap);
      EXPECT_TRUE(emulator::take_products().at(0).copies);
    }
  }
}

TEST_F(GemmTest, AlgorithmsFitTheWorkspace) {
  emulator::set_algorithms({{.workspace_bytes = 4096}, {}});
  Gemm gemm(true, false);
  EXPECT_EQ(algorithm_of(gemm, Added::nothing, 4096).workspace_bytes, 4096U);
  EXPECT_EQ(algorithm_of(gemm, Added::nothing, 2048).workspace_bytes, 0U);
}

// The parts of a split sum are added in float32 and, where the same bits are asked for, in a fixed order.
TEST_F(GemmTest, SplitSumsAreAddedInFloat32) {
  for (const bool deterministic : {true, false}) {
    for (const auto& [in, out] : kTypes) {
      Gemm gemm(deterministic, false);
      expect_product(gemm, {.m = 4, .n = 8, .k = 16, .in = in, .out = out}, Added::c, 0);
      const bool any = !deterministic && out == DType::float32;
      EXPECT_EQ(emulator::take_products().at(0).asked.partial_sums,
                any ? PartialSums::any : PartialSums::in_order)
          << to_string(out) << deterministic;
    }
  }
}

TEST_F(GemmTest, Tf32IsForFloat32WhereItIsAskedFor) {
  for (const bool tf32 : {true, false}) {
    for (const auto& [in, out] : kTypes) {
      Gemm gemm(true, tf32);
      expect_product(gemm, {.m = 4, .n = 8, .k = 16, .in = in, .out = out}, Added::nothing, 0);
      EXPECT_EQ(emulator::take_products().at(0).asked.tf32, tf32 && in == DType::float32);
    }
  }
}

TEST_F(GemmTest, AlgorithmsThatDoNotRunArePassedOver) {
  emulator::set_algorithms({{.runs = false}, {.workspace_bytes = 256}});
  Gemm gemm(true, false);
  EXPECT_TRUE(algorithm_of(gemm, Added::nothing, 256).runs);
  emulator::set_algorithms({{.runs = false}});
  try {
    algorithm_of(gemm, Added::c, 256);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the product bfloat16 [4, 8] += [4, 16] [8, 16]^T of bfloat16"));
  }
}

TEST_F(GemmTest, ProductsOutsideTheTableAreRefused) {
  Gemm gemm(true, false);
  Matrix a(DType::float32, 4, 4), b(DType::float32, 4, 4), c(DType::bfloat16, 4, 4);
  EXPECT_THROW(run(gemm, {.m = 4, .n = 4, .k = 4, .in = DType::float32, .out = DType::bfloat16}, a, b, c),
               Error);
  EXPECT_THROW(run(gemm, {.m = 0, .n = 4, .k = 4}, a, b, c), Error);
}

}  // namespace
}  // namespace llampi::test
