// SPDX-License-Identifier: Apache-2.0
// Single kernels, in every variant that this machine can run, and the matrix products.
#include <omp.h>

#include <cmath>
#include <limits>

#include "device/cpu/gemm.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/parallel.hpp"
#include "support/device_session.hpp"

namespace llampi::test {
namespace {

std::vector<float> exponentials(const device::Kernels& kernels, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  kernels.exp(static_cast<std::int64_t>(x.size()), x.data(), y.data());
  return y;
}

// The reduced argument is off by up to 2^-25, the polynomial by 3e-9, and its value is rounded at most twice:
// with 2^-24 for a rounding 1.5e-7 in all. Without fused multiply-add the last steps round once more.
TEST(VectorExp, IsNearOverTheWholeRange) {
  std::vector<float> x;
  for (float v = -87.33F; v < 88.7228F; v += 0.000731F) x.push_back(v);
  for (float v = 1e-30F; v < 0.1F; v *= 1.37F) x.insert(x.end(), {v, -v});
  for (const device::Kernels* kernels : device::available_kernels()) {
    const std::vector<float> y = exponentials(*kernels, x);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / exact);
    }
    EXPECT_LT(worst, 1.5e-7) << kernels->name;
    std::printf("%s: largest relative error of exp %.3g\n", kernels->name, worst);
  }
}

TEST(VectorExp, IsRightAtTheEdges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const device::Kernels* kernels : device::available_kernels()) {
    const std::vector<float> y = exponentials(*kernels, {0.0F, -0.0F, -88.0F, -1e30F, -kInfinity, 88.73F,
                                                         1e30F, kInfinity, std::nanf(""), 88.722F});
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    for (int i = 2; i < 5; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)], 0) << kernels->name << i;
    for (int i = 5; i < 8; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)], kInfinity) << kernels->name << i;
    EXPECT_TRUE(std::isnan(y[8])) << kernels->name;
    EXPECT_TRUE(std::isfinite(y[9])) << kernels->name;
  }
}

TEST(VectorExp, PositionDoesNotMatter) {
  std::vector<float> x;
  for (int i = 0; i < 53; ++i) x.push_back(static_cast<float>(i) * 0.37F - 9);
  for (const device::Kernels* kernels : device::available_kernels()) {
    const std::vector<float> whole = exponentials(*kernels, x);
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(exponentials(*kernels, {x[i]})[0], whole[i]) << kernels->name;
  }
}

TEST(Kernels, SwiGluIsFiniteFarOut) {
  const std::vector<float> gate{-1e30F, -200, -90, 90, 200, 1e30F}, up(6, 2.0F), ones(6, 1.0F);
  for (const device::Kernels* kernels : device::available_kernels()) {
    std::vector<float> activated(6), again(6), dgate = gate, dup = up;
    kernels->swiglu(6, gate.data(), up.data(), activated.data());
    kernels->swiglu_backward(6, ones.data(), dgate.data(), dup.data(), again.data());
    EXPECT_EQ(activated, again) << kernels->name;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(activated[i], 0, 1e-30) << kernels->name;
      EXPECT_NEAR(dgate[i], 0, 1e-30) << kernels->name;
      EXPECT_NEAR(dup[i], 0, 1e-30) << kernels->name;
    }
    for (std::size_t i = 3; i < 6; ++i) {
      EXPECT_FLOAT_EQ(activated[i], 2 * gate[i]) << kernels->name;
      EXPECT_FLOAT_EQ(dgate[i], 2) << kernels->name;
      EXPECT_FLOAT_EQ(dup[i], gate[i]) << kernels->name;
    }
  }
}

// An element of C is a sum of k products: eps sqrt(k) times its usual size, the largest of many four times
// that.
void expect_product(device::Gemm& gemm, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                    std::int64_t k, float beta) {
  SCOPED_TRACE(fmt::format("{}{} m {} n {} k {} beta {}", transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m,
                           n, k, beta));
  const std::int64_t pad = 3;  // rows are further apart than they are long
  const std::int64_t stride_a = (transpose_a ? m : k) + pad, stride_b = (transpose_b ? k : n) + pad,
                     stride_c = n + pad;
  const Values a = normal(transpose_a ? k : m, stride_a, "a"), b = normal(transpose_b ? n : k, stride_b, "b");
  const Values start = normal(m, stride_c, "c");
  const std::vector<float> fa(a.data.begin(), a.data.end()), fb(b.data.begin(), b.data.end());
  std::vector<float> c(start.data.begin(), start.data.end());
  for (std::int64_t i = 0; i < m * stride_c; ++i) {
    if (beta == 0 && i % stride_c < n) c[static_cast<std::size_t>(i)] = std::nanf("");
  }
  gemm({.transpose_a = transpose_a,
        .transpose_b = transpose_b,
        .m = m,
        .n = n,
        .k = k,
        .alpha = 0.5F,
        .a = fa.data(),
        .stride_a = stride_a,
        .b = fb.data(),
        .stride_b = stride_b,
        .beta = beta,
        .c = c.data(),
        .stride_c = stride_c});
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < stride_c; ++j) {
      const auto at = static_cast<std::size_t>(i * stride_c + j);
      double expected = start.data[at] * (j < n ? static_cast<double>(beta) : 1);
      for (std::int64_t l = 0; l < k && j < n; ++l) {
        expected += 0.5 *
                    a.data[static_cast<std::size_t>(transpose_a ? l * stride_a + i : i * stride_a + l)] *
                    b.data[static_cast<std::size_t>(transpose_b ? j * stride_b + l : l * stride_b + j)];
      }
      ASSERT_NEAR(static_cast<double>(c[at]), expected, j < n ? 4 * kEpsilon * static_cast<double>(k + 1) : 0)
          << i << "," << j;
    }
  }
}

TEST(GemmTest, EveryFormIsNearASumInFloat64) {
  for (const int threads : {1, 2, 3, 4}) {
    device::Gemm gemm(threads);
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const float beta : {0.0F, 1.0F}) {
          expect_product(gemm, transpose_a, transpose_b, 1, 1, 1, beta);
          expect_product(gemm, transpose_a, transpose_b, 7, 65, 20, beta);
          expect_product(gemm, transpose_a, transpose_b, 130, 33, 80, beta);
          expect_product(gemm, transpose_a, transpose_b, 1, 331, 80, beta);
          expect_product(gemm, transpose_a, transpose_b, 64, 1, 17, beta);
        }
      }
    }
  }
}

// What the library may start inside a region is one thread, and afterwards the program's setting is as it
// was.
TEST(Parallel, LibrariesStayInTheirThread) {
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 3}) {
    std::vector<int> inside(8);
    device::parallel_items(threads, 8, [&](std::int64_t item, int) {
      inside[static_cast<std::size_t>(item)] = omp_get_max_threads();
    });
    for (const int count : inside) EXPECT_EQ(count, 1);
    EXPECT_EQ(omp_get_max_threads(), before);
  }
}

TEST(Parallel, RangesCoverEachElementOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 100}) {
      std::vector<int> seen(static_cast<std::size_t>(n));
      device::parallel_ranges(threads, n, 16, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      for (const int count : seen) EXPECT_EQ(count, 1);
    }
  }
}

}  // namespace
}  // namespace llampi::test
