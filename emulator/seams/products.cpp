// SPDX-License-Identifier: Apache-2.0
// The products that src/device/cuda/gemm.cpp asks for, as loops on the emulated GPU. What cuBLASLt would
// refuse, or get wrong without a word, ends with an Error here.
#include "emulator/seams/products.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "device/cuda/kernels.cuh"
#include "llampi/core/float8.hpp"

namespace llampi::emulator {
namespace {

using device::Fp8Scaling;
using device::kFp8Block;
using device::cuda::ColumnMatrix;
using device::cuda::ColumnOperands;
using device::cuda::ColumnProduct;
using device::cuda::PartialSums;
using device::cuda::Transpose;

constexpr std::size_t kSpoiled = 1 << 16;  ///< bytes of the workspace that a product overwrites
/// What is offered unless a test says otherwise: the first takes as much of the workspace.
const std::vector<Algorithm> kUsual{{.workspace_bytes = kSpoiled, .seconds = 1e-5}, {.seconds = 1e-5}};

std::vector<Algorithm> offered = kUsual;
std::vector<Product> products;
int searches = 0, runs_that_differ = 0;

/// The table of FP8 kernels there and what is said above it: on Ada and Hopper the first matrix is transposed and the
/// second is not, and sides and addresses are multiples of 16.
bool is_supported_in_8_bits(const ColumnProduct& product) {
  const DType in[] = {product.first.dtype, product.second.dtype};
  const DType out = product.result.dtype;
  const auto sixteens = [](const ColumnMatrix& matrix) {
    return matrix.rows % 16 == 0 && matrix.cols % 16 == 0 && matrix.stride % 16 == 0;
  };
  return is_float8(in[1]) && (in[0] != DType::float8_e5m2 || in[1] != DType::float8_e5m2) &&
         (out == DType::bfloat16 || out == DType::float32) && !product.tf32 &&
         product.transpose_first == Transpose::yes && product.transpose_second == Transpose::no &&
         sixteens(product.first) && sixteens(product.second) && sixteens(product.result) &&
         std::ranges::all_of(product.alignment, [](auto a) { return a >= 16; });
}

/// What is said there of scales of blocks: not blocks by blocks, nor beside one scale, and sums are those of 128 numbers.
bool is_supported_in_blocks(const ColumnProduct& product) {
  const Fp8Scaling first = product.first_scaling, second = product.second_scaling;
  if (first == Fp8Scaling::tensor && second == Fp8Scaling::tensor) return true;
  const auto whole = [](const ColumnMatrix& matrix) {
    return matrix.rows % kFp8Block == 0 && matrix.cols % kFp8Block == 0;
  };
  return is_float8(product.first.dtype) && first != Fp8Scaling::tensor && second != Fp8Scaling::tensor &&
         (first != Fp8Scaling::blocks || second != Fp8Scaling::blocks) && !product.fast_accumulation &&
         whole(product.first) && whole(product.second);
}

/// The rows of the table of cublasLtMatmul() in cuBLAS's documentation, for float32 scale factors.
bool is_supported(const ColumnProduct& product) {
  const DType in = product.first.dtype, out = product.result.dtype;
  if (is_float8(in)) return is_supported_in_8_bits(product);
  const bool known = in == DType::float32 || in == DType::bfloat16 || in == DType::float16;
  return known && product.second.dtype == in && (out == in || out == DType::float32) &&
         (!product.tf32 || in == DType::float32) && !product.fast_accumulation;
}

/// [m, n] = op([m, k]) op([k, n]), columns that do not overlap.
bool fits_together(const ColumnProduct& product) {
  const ColumnMatrix &first = product.first, &second = product.second, &result = product.result;
  const bool turned[] = {product.transpose_first == Transpose::yes,
                         product.transpose_second == Transpose::yes};
  for (const ColumnMatrix& matrix : {first, second, result}) {
    if (matrix.rows <= 0 || matrix.cols <= 0 || matrix.stride < matrix.rows) return false;
  }
  return (turned[0] ? first.rows : first.cols) == (turned[1] ? second.cols : second.rows) &&
         result.rows == (turned[0] ? first.cols : first.rows) &&
         result.cols == (turned[1] ? second.rows : second.cols);
}

bool is_allowed(const Algorithm& algorithm, const ColumnProduct& product) {
  return (algorithm.partial_sums == PartialSums::in_order || product.partial_sums == PartialSums::any) &&
         algorithm.workspace_bytes <= static_cast<std::size_t>(product.workspace_bytes) &&
         std::ranges::all_of(product.alignment, [&](auto a) { return a >= algorithm.alignment; });
}

/// Calls `use(index, value)` for `count` elements from `begin` on.
template <class Use>
void read(const void* data, DType dtype, std::int64_t begin, std::int64_t count, const Use& use) {
  if (is_float8(dtype)) {
    const auto* const values = static_cast<const std::uint8_t*>(data) + begin;
    const auto format = float8_format(dtype);
    for (std::int64_t i = 0; i < count; ++i) use(i, from_float8(format, values[i]));
    return;
  }
  device::cuda::dispatch(dtype, [&](auto tag) {
    const auto* const values = static_cast<const typename decltype(tag)::type*>(data) + begin;
    for (std::int64_t i = 0; i < count; ++i) use(i, device::cuda::to_float(values[i]));
  });
}

void write(void* data, DType dtype, std::int64_t at, float value) {
  device::cuda::dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(data)[at] = device::cuda::from_float<T>(value);
  });
}

/// A matrix as it is multiplied.
struct Operand {
  const void* data;
  ColumnMatrix matrix;
  Transpose transpose;
  Fp8Scaling scaling;
  const float* factors;

  /// Of the block or tile that an element is in; one factor is that of the product.
  float factor(std::int64_t row, std::int64_t col) const {
    if (scaling == Fp8Scaling::tensor) return 1;
    const std::int64_t along = row / kFp8Block;
    const std::int64_t cols = device::fp8_scale_shape(scaling, matrix.cols, matrix.rows).cols;
    return factors[scaling == Fp8Scaling::tiles ? along * cols + col : col / kFp8Block * cols + along];
  }
};

/// op(matrix) in float32, row by row, without gaps.
std::vector<float> rows_of(const Operand& operand) {
  const ColumnMatrix& m = operand.matrix;
  std::vector<float> result(static_cast<std::size_t>(m.rows * m.cols));
  const bool turned = operand.transpose == Transpose::yes;
  for (std::int64_t j = 0; j < m.cols; ++j) {
    float* const first = &result[static_cast<std::size_t>(turned ? j * m.rows : j)];
    const std::int64_t apart = turned ? 1 : m.cols;
    read(operand.data, m.dtype, j * m.stride, m.rows,
         [&](std::int64_t i, float value) { first[i * apart] = value * operand.factor(i, j); });
  }
  return result;
}

/// What takes the time of a product. What the emulator checks of every address would leave it one number at a time, and these are
/// its own.
__attribute__((no_sanitize("alignment"))) void add_multiple(float* row, float factor, const float* added,
                                                            std::size_t count) {
  for (std::size_t j = 0; j < count; ++j) row[j] += factor * added[j];
}

void multiply(const ColumnProduct& product, const ColumnOperands& operands) {
  const std::vector<float> a = rows_of(
      {operands.first, product.first, product.transpose_first, product.first_scaling, operands.first_factor});
  const std::vector<float> b = rows_of({operands.second, product.second, product.transpose_second,
                                        product.second_scaling, operands.second_factor});
  const ColumnMatrix& c = product.result;
  const auto m = static_cast<std::size_t>(c.rows), n = static_cast<std::size_t>(c.cols), k = a.size() / m;
  const bool has_one_factor = is_float8(product.first.dtype) && product.first_scaling == Fp8Scaling::tensor;
  const float factor_of_both =
      operands.scale * (has_one_factor ? *operands.first_factor * *operands.second_factor : 1.0F);
  std::vector<float> rows(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    float* const row = &rows[i * n];
    for (std::size_t l = 0; l < k; ++l) add_multiple(row, a[i * k + l], &b[l * n], n);
    for (std::size_t j = 0; j < n; ++j) row[j] *= factor_of_both;
  }
  device::cuda::dispatch(c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::size_t j = 0; j < n; ++j) {
      const std::int64_t column = static_cast<std::int64_t>(j) * c.stride;
      const T* const added = product.adds ? static_cast<const T*>(operands.added) + column : nullptr;
      T* const result = static_cast<T*>(operands.result) + column;
      for (std::size_t i = 0; i < m; ++i) {
        const float before = added != nullptr ? device::cuda::to_float(added[i]) : 0.0F;
        result[i] = device::cuda::from_float<T>(rows[i * n + j] + before);
      }
    }
  });
}

/// cuBLASLt takes a factor that it is not given for 1.
void check_factors(const ColumnProduct& product, const ColumnOperands& operands) {
  for (const float* const factor : {operands.first_factor, operands.second_factor}) {
    require((factor != nullptr) == is_float8(product.first.dtype),
            "matrices in 8 bits have factors, and no others");
    require(reinterpret_cast<std::uintptr_t>(factor) % 16 == 0, "a factor is not aligned");
  }
}

class EmulatedProduct final : public device::cuda::LibraryProduct {
 public:
  explicit EmulatedProduct(const ColumnProduct& product) : product_(product) {
    for (const emulator::Algorithm& algorithm : offered) {
      if (is_allowed(algorithm, product)) algorithms_.push_back(algorithm);
    }
  }

  std::vector<Algorithm> algorithms() const override {
    std::vector<Algorithm> result;
    for (const auto& algorithm : algorithms_) {
      result.push_back({algorithm.runs, algorithm.workspace_bytes,
                        fmt::format("workspace {} alignment {} seconds {}", algorithm.workspace_bytes,
                                    algorithm.alignment, algorithm.seconds)});
    }
    return result;
  }

  bool adds_out_of_place(std::size_t algorithm) const override {
    return algorithms_.at(algorithm).out_of_place;
  }

  void run(const Way& way, const ColumnOperands& given, void* workspace, cudaStream_t stream) override {
    const emulator::Algorithm& algorithm = algorithms_.at(way.algorithm);
    require(algorithm.runs, "an algorithm that cannot be used");
    require((given.added == given.result) == product_.in_place,
            "a product that is in place where it was not, or not where it was");
    const ColumnOperands operands = device::cuda::copied(way, product_.result, given, stream);
    check_addresses(operands, algorithm);
    const std::size_t bytes = algorithm.workspace_bytes;
    require(bytes == 0 || reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0,
            "the workspace is not aligned");
    products.push_back({algorithm, product_, way.copies});
    enqueue(stream, [=, product = product_] {
      if (bytes > 0) std::memset(workspace, 0xFF, std::min(bytes, kSpoiled));
      multiply(product, operands);
      if (!algorithm.repeats_its_bits)
        write(operands.result, product.result.dtype, 0, static_cast<float>(++runs_that_differ));
    });
  }

  double time(const Way& way, const ColumnOperands& operands, void* workspace, cudaStream_t stream,
              int runs) override {
    const emulator::Algorithm& algorithm = algorithms_.at(way.algorithm);
    require(runs > 0, "nothing is timed");
    if (algorithm.fails) throw Error("the emulated product fails");
    run(way, operands, workspace, stream);
    run_stream(stream);
    const bool first = timed_.insert(way.algorithm).second;
    if (first && algorithm.seconds_at_first > 0) return algorithm.seconds_at_first;
    return algorithm.seconds + (way.copies ? kCopySeconds : 0);
  }

 private:
  void check_addresses(const ColumnOperands& operands, const emulator::Algorithm& algorithm) const {
    const auto check = [](const void* data, const ColumnMatrix& matrix, std::uint32_t promised) {
      const auto address = reinterpret_cast<std::uintptr_t>(data);
      require(address % promised == 0, "a matrix is less aligned than was promised");
      require(address % static_cast<std::uintptr_t>(size_of(matrix.dtype)) == 0, "a matrix is not aligned");
    };
    const auto [first, second, result] = product_.alignment;
    check(operands.first, product_.first, first);
    check(operands.second, product_.second, second);
    check(operands.result, product_.result, result);
    check(operands.added, product_.result, result);
    require(operands.result != operands.first && operands.result != operands.second,
            "a product that overwrites its operand");
    require(operands.added == operands.result || algorithm.out_of_place, "the algorithm works in place only");
    check_factors(product_, operands);
  }

  ColumnProduct product_;
  std::vector<emulator::Algorithm> algorithms_;
  std::set<std::size_t> timed_;
};

class EmulatedProducts final : public device::cuda::ProductLibrary {
 public:
  std::unique_ptr<device::cuda::LibraryProduct> product(const ColumnProduct& product,
                                                        const ColumnOperands& operands) override {
    ++searches;
    require(fits_together(product), "matrices that do not fit together");
    require(is_supported(product), "dtypes that cannot be multiplied");
    require(is_supported_in_blocks(product), "scales that cannot be multiplied");
    check_factors(product, operands);
    return std::make_unique<EmulatedProduct>(product);
  }
};

}  // namespace

void set_algorithms(std::vector<Algorithm> algorithms) { offered = std::move(algorithms); }
void set_usual_algorithms() { offered = kUsual; }
std::vector<Product> take_products() { return std::exchange(products, {}); }
int take_searches() { return std::exchange(searches, 0); }

}  // namespace llampi::emulator

namespace llampi::device::cuda {

std::unique_ptr<ProductLibrary> make_product_library() {
  return std::make_unique<emulator::EmulatedProducts>();
}
std::string product_library_version() { return "emulated products"; }
bool product_library_has_blocks() { return true; }

}  // namespace llampi::device::cuda
