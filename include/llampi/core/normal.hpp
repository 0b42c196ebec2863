// SPDX-License-Identifier: Apache-2.0
// Normal numbers from random bits, by arithmetic that gives the same bits wherever it runs: on processors of
// any instruction set, vectors of any width, and GPUs. A product that something is added to is a fused
// multiply-add always, so that no compiler has a choice; the rest is IEEE 754's operations on float64.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "llampi/core/host_device.hpp"

namespace llampi {

/// What standard_normal() computes with: one number at a time. Vectors have another of this shape.
struct ScalarArithmetic {
  using Real = double;
  using Bits = std::uint64_t;
  LLAMPI_HOST_DEVICE static Real constant(double value) { return value; }
  LLAMPI_HOST_DEVICE static Real multiply_add(Real a, Real b, Real c) { return fma(a, b, c); }
  LLAMPI_HOST_DEVICE static Real square_root(Real v) { return sqrt(v); }
  LLAMPI_HOST_DEVICE static Real as_real(Bits bits) {
    Real v;
    memcpy(&v, &bits, sizeof v);
    return v;
  }
  LLAMPI_HOST_DEVICE static Bits as_bits(Real v) {
    Bits bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
  }
};

/// coefficients[0] x^(N - 1) + ... + coefficients[N - 1]
template <class Arithmetic, int N>
LLAMPI_HOST_DEVICE inline typename Arithmetic::Real polynomial(typename Arithmetic::Real x,
                                                               const double (&coefficients)[N]) {
  typename Arithmetic::Real sum = Arithmetic::constant(coefficients[0]);
  for (int i = 1; i < N; ++i) sum = Arithmetic::multiply_add(sum, x, Arithmetic::constant(coefficients[i]));
  return sum;
}

/// Of a whole number below 2^52.
template <class Arithmetic>
LLAMPI_HOST_DEVICE inline typename Arithmetic::Real real_of(typename Arithmetic::Bits whole) {
  return Arithmetic::as_real(whole | 0x4330000000000000U) - 0x1p52;
}

/// log(n / 2^53) for whole n from 1 to 2^53: n = m 2^e with m from sqrt(1/2) to sqrt(2), and log(1 + f) =
/// 2 atanh(s) for s = f / (f + 2), by its Taylor series.
template <class Arithmetic>
LLAMPI_HOST_DEVICE inline typename Arithmetic::Real log_of_fraction(typename Arithmetic::Real n) {
  constexpr double kSeries[] = {2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13,
                                2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
  constexpr double kLog2 = 0x1.62e42fefa39efp-1, kLog2Rest = 0x1.abc9e3b39803fp-56;
  const auto bits = Arithmetic::as_bits(n);
  const auto exponent = (bits - 0x3FE6A09E667F3BCDU) >> 52;  // those of sqrt(1/2)
  const auto e = real_of<Arithmetic>(exponent) - 53.0;
  const auto f = Arithmetic::as_real(bits - (exponent << 52)) - 1.0;
  const auto s = f / (f + 2.0), z = s * s;
  const auto rest = Arithmetic::multiply_add(-z, polynomial<Arithmetic>(z, kSeries), f);
  const auto log_m = Arithmetic::multiply_add(-s, rest, f);
  return Arithmetic::multiply_add(e, Arithmetic::constant(kLog2),
                                  Arithmetic::multiply_add(e, Arithmetic::constant(kLog2Rest), log_m));
}

/// cos(2 pi n / 2^53) for whole n below 2^53, given as bits and as a number, by Taylor series around the nearest
/// quarter of a turn. 2 pi n / 2^53 is rounded to float64 first.
template <class Arithmetic>
LLAMPI_HOST_DEVICE inline typename Arithmetic::Real cos_of_turns(typename Arithmetic::Bits whole,
                                                                 typename Arithmetic::Real n) {
  constexpr double kSin[] = {1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
                             1.0 / 362880,          -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
  constexpr double kCos[] = {1.0 / 20922789888000,
                             -1.0 / 87178291200,
                             1.0 / 479001600,
                             -1.0 / 3628800,
                             1.0 / 40320,
                             -1.0 / 720,
                             1.0 / 24,
                             -1.0 / 2,
                             1.0};
  constexpr double kTurn = 0x1.921fb54442d18p+2, kQuarter = 0x1.921fb54442d18p+0,
                   kQuarterRest = 0x1.1a62633145c07p-54;
  const auto quarter = (whole + (std::uint64_t{1} << 50)) >> 51;  // 0 to 4
  const auto back = -real_of<Arithmetic>(quarter);
  auto angle = kTurn * (n * 0x1p-53);
  angle = Arithmetic::multiply_add(back, Arithmetic::constant(kQuarter), angle);
  angle = Arithmetic::multiply_add(back, Arithmetic::constant(kQuarterRest), angle);
  const auto square = angle * angle;
  const auto sin = Arithmetic::as_bits(
      Arithmetic::multiply_add(angle * square, polynomial<Arithmetic>(square, kSin), angle));
  const auto cos = Arithmetic::as_bits(polynomial<Arithmetic>(square, kCos));
  // cos(angle), -sin(angle), -cos(angle), sin(angle), cos(angle) in the quarters
  const auto is_odd = typename Arithmetic::Bits{} - (quarter & 1), sign = ((quarter + 1) & 2) << 62;
  return Arithmetic::as_real(((sin & is_odd) | (cos & ~is_odd)) ^ sign);
}

/// A standard normal number of 128 random bits (Box & Muller, Ann. Math. Statist. 29, 1958):
/// sqrt(-2 log u1) cos(2 pi u2), where u1 = (first / 2^11 + 1) / 2^53 and u2 = (second / 2^11) / 2^53.
template <class Arithmetic>
LLAMPI_HOST_DEVICE inline typename Arithmetic::Real standard_normal(typename Arithmetic::Bits first,
                                                                    typename Arithmetic::Bits second) {
  const auto upper_53 = [](typename Arithmetic::Bits bits) {
    return real_of<Arithmetic>(bits >> 32) * 0x1p21 + real_of<Arithmetic>((bits >> 11) & 0x1FFFFF);  // exact
  };
  const auto log = log_of_fraction<Arithmetic>(upper_53(first) + 1.0);
  return Arithmetic::square_root(-2.0 * log) * cos_of_turns<Arithmetic>(second >> 11, upper_53(second));
}

}  // namespace llampi
