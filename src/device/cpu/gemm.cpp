// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/gemm.hpp"

#include "device/cpu/parallel.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/device/cpu_level.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kTileGrain = 16;  // tiles start on whole vectors

struct Side {
  std::int64_t begin, end;
};

Side cut(std::int64_t n, std::int64_t part, std::int64_t parts) {
  const std::int64_t grains = ceil_div(n, kTileGrain);
  return {grains * part / parts * kTileGrain, std::min(n, grains * (part + 1) / parts * kTileGrain)};
}

/// In how many parts the rows of C are cut among `threads`: so that the tiles' sides, which are what is read,
/// are short.
int row_parts(std::int64_t m, std::int64_t n, int threads) {
  int best = 1;
  double best_sides = 0;
  for (int rows = 1; rows <= threads; ++rows) {
    if (threads % rows != 0) continue;
    const double sides = static_cast<double>(m) / rows + static_cast<double>(n) * rows / threads;
    if (best_sides == 0 || sides < best_sides) {
      best = rows;
      best_sides = sides;
    }
  }
  return best;
}

}  // namespace

Gemm::Gemm(int threads) : threads_(threads) {
  const GemmLibrary library = inspect_gemm_library();
  if (library.level == CpuLevel::generic && cpu_level() != CpuLevel::generic) {
    throw_user_error(
        "{} would use its kernels for any processor ({}), several times slower than those for this one's {}: "
        "{}.",
        library.name, library.core, to_string(cpu_level()), library.remedy);
  }
  make_gemm_library_serial();
}

void Gemm::operator()(const Product& product) {
  const int rows = row_parts(product.m, product.n, threads_);
  const int cols = threads_ / rows;
  parallel_items(threads_, threads_,
                 [&](std::int64_t part, int) { tile(product, part % rows, rows, part / rows, cols); });
  check();
}

void Gemm::tile(const Product& product, std::int64_t row_part, std::int64_t row_parts, std::int64_t col_part,
                std::int64_t col_parts) noexcept {
  const Side rows = cut(product.m, row_part, row_parts);
  const Side cols = cut(product.n, col_part, col_parts);
  if (rows.begin >= rows.end || cols.begin >= cols.end) return;
  Product part = product;
  part.m = rows.end - rows.begin;
  part.n = cols.end - cols.begin;
  part.a += product.transpose_a ? rows.begin : rows.begin * product.stride_a;
  part.b += product.transpose_b ? cols.begin * product.stride_b : cols.begin;
  part.c += rows.begin * product.stride_c + cols.begin;
  serial(part);
}

void Gemm::serial(const Product& product) noexcept {
  const int status = library_sgemm(product);
  if (status != 0) status_.store(status, std::memory_order_relaxed);
}

void Gemm::check() {
  const int status = status_.exchange(0, std::memory_order_relaxed);
  if (status != 0) throw CallError("sgemm", fmt::format("status {} of {}", status, describe()));
}

std::string Gemm::describe() const {
  const GemmLibrary library = inspect_gemm_library();
  return library.core.empty() ? library.name : fmt::format("{} ({})", library.name, library.core);
}

Product product_nt(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.transpose_b = true,
          .m = m,
          .n = n,
          .k = k,
          .a = x,
          .stride_a = k,
          .b = w,
          .stride_b = k,
          .c = y,
          .stride_c = n};
}
Product product_nn(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m, .n = n, .k = k, .a = x, .stride_a = k, .b = w, .stride_b = n, .c = y, .stride_c = n};
}
Product product_tn(const float* y, const float* x, float* w, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.transpose_a = true,
          .m = m,
          .n = n,
          .k = k,
          .a = y,
          .stride_a = m,
          .b = x,
          .stride_b = n,
          .c = w,
          .stride_c = n};
}

}  // namespace llampi::device
