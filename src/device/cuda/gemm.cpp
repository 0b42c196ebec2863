// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/gemm.hpp"

#include <algorithm>
#include <utility>

#include "device/cuda/product_timer.hpp"

namespace llampi::device::cuda {
namespace {

/// " in tiles"
const char* words_of(Fp8Scaling scaling) {
  if (scaling == Fp8Scaling::tiles) return " in tiles";
  return scaling == Fp8Scaling::blocks ? " in blocks" : "";
}

/// "the product bfloat16 [8192, 4096] = [8192, 14336] [4096, 14336]^T of bfloat16"
std::string describe(const GemmShape& s) {
  const auto operand = [](std::int64_t rows, std::int64_t cols, Transpose transpose) {
    return transpose == Transpose::yes ? fmt::format("[{}, {}]^T", cols, rows)
                                       : fmt::format("[{}, {}]", rows, cols);
  };
  return fmt::format("the product {} [{}, {}] {} {}{} {}{} of {}{}", to_string(s.out), s.m, s.n,
                     s.accumulate == Accumulate::yes ? "+=" : "=", operand(s.m, s.k, s.a),
                     words_of(s.a_scaling), operand(s.k, s.n, s.b), words_of(s.b_scaling), to_string(s.in),
                     s.in_b ? fmt::format(" and {}", to_string(*s.in_b)) : "");
}

/// The largest power of two that divides both addresses. 64 at most, as parameters in 8 bits are aligned in their units
/// (fsdp::kAlignment): what else is with them decides nothing then, so that a product has one algorithm for all wrap policies.
std::uint32_t alignment_of(const void* p, const void* q) {
  const auto bits = reinterpret_cast<std::uintptr_t>(p) | reinterpret_cast<std::uintptr_t>(q) | 64U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// A matrix with rows one after another is, by columns, its transpose.
ColumnMatrix transposed(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  const std::int64_t used = stride == 0 ? cols : stride;
  require(used >= cols, "the rows of a matrix overlap");
  return {dtype, cols, rows, used};
}

/// The library stores matrices by columns: what it sees of a row-major matrix is its transpose. So it is
/// asked for C^T = op(B)^T op(A)^T, with B as its first operand, and no matrix has to be moved.
ColumnProduct by_columns(const GemmShape& s) {
  const bool a_turned = s.a == Transpose::yes, b_turned = s.b == Transpose::yes;
  ColumnProduct product;
  product.first = transposed(s.in_b.value_or(s.in), b_turned ? s.n : s.k, b_turned ? s.k : s.n, 0);
  product.second = transposed(s.in, a_turned ? s.k : s.m, a_turned ? s.m : s.k, s.a_stride);
  product.result = transposed(s.out, s.m, s.n, s.c_stride);
  product.transpose_first = s.b;
  product.transpose_second = s.a;
  product.first_scaling = s.b_scaling;
  product.second_scaling = s.a_scaling;
  product.fast_accumulation = s.fast_accumulation;
  return product;
}

/// Where the same bits are asked for, nothing is added as it comes; nor where the result is narrow, because
/// it would be rounded between the parts.
PartialSums partial_sums(DType out, bool deterministic) {
  return out == DType::float32 && !deterministic ? PartialSums::any : PartialSums::in_order;
}

/// "bfloat16 4096 x 8192 by 4096, ...": all that a choice depends on.
std::string name_of(const ColumnProduct& p) {
  const auto matrix = [](const ColumnMatrix& m, Transpose transpose, Fp8Scaling scaling) {
    return fmt::format("{} {}x{}/{}{}{}", to_string(m.dtype), m.rows, m.cols, m.stride,
                       transpose == Transpose::yes ? "^T" : "", words_of(scaling));
  };
  return fmt::format("{} * {} -> {}{}{}{}{}, alignment {} {} {}, workspace {}{}",
                     matrix(p.first, p.transpose_first, p.first_scaling),
                     matrix(p.second, p.transpose_second, p.second_scaling),
                     matrix(p.result, Transpose::no, Fp8Scaling::tensor),
                     p.adds ? (p.in_place ? ", added" : ", added elsewhere") : "", p.tf32 ? ", tf32" : "",
                     p.fast_accumulation ? ", fast accumulation" : "",
                     p.partial_sums == PartialSums::any ? ", any order" : "", p.alignment[0], p.alignment[1],
                     p.alignment[2], p.workspace_bytes,
                     p.multiprocessors > 0 ? fmt::format(", {} multiprocessors", p.multiprocessors) : "");
}

}  // namespace

ColumnOperands copied(const LibraryProduct::Way& way, const ColumnMatrix& result,
                      const ColumnOperands& operands, cudaStream_t stream) {
  if (!way.copies) return operands;
  const auto element = static_cast<std::size_t>(size_of(result.dtype));
  const std::size_t column = static_cast<std::size_t>(result.rows) * element;
  const std::size_t stride = static_cast<std::size_t>(result.stride) * element;
  check(cudaMemcpy2DAsync(operands.result, stride, operands.added, stride, column,
                          static_cast<std::size_t>(result.cols), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpy2DAsync");
  ColumnOperands left = operands;
  left.added = operands.result;
  return left;
}

/// A product that was asked for, and how it was chosen to be computed.
struct Gemm::Plan {
  explicit Plan(std::unique_ptr<LibraryProduct> product) : in_library(std::move(product)) {}

  std::unique_ptr<LibraryProduct> in_library;
  LibraryProduct::Way way;
  std::string name;  ///< of the way
};

Gemm::Gemm(bool deterministic, bool tf32, std::string gpu, int multiprocessors)
    : library_(make_product_library()),
      deterministic_(deterministic),
      tf32_(tf32),
      gpu_(std::move(gpu)),
      multiprocessors_(multiprocessors) {}

Gemm::~Gemm() = default;

std::string Gemm::key() const { return fmt::format("{}, {}", gpu_, product_library_version()); }

void Gemm::adopt(const AlgorithmChoices& choices) {
  adopted_ = choices;
  plans_.clear();
  warnings_.clear();
}

AlgorithmChoices Gemm::choices() const {
  AlgorithmChoices choices;
  for (const auto& [product, plan] : plans_) {
    if (plan) choices[name_of(product)] = plan->name;
  }
  return choices;
}

/// The adopted way, if there is one and it can be used; else, while measuring, the fastest that repeats its
/// bits; else the library's first.
/// @throws Error if there is no algorithm
void Gemm::choose(Plan& plan, const ColumnProduct& product, const ColumnOperands& operands,
                  const Tensor& workspace, cudaStream_t stream) {
  const std::vector<NamedWay> ways = ways_of(*plan.in_library, product.in_place);
  if (ways.empty()) throw Error("no algorithm can be used");
  const auto take = [&](const NamedWay& way) {
    plan.way = way;
    plan.name = way.name;
  };
  take(ways.front());
  if (const auto adopted = adopted_.find(name_of(product)); adopted != adopted_.end()) {
    if (const auto same = std::ranges::find(ways, adopted->second, &NamedWay::name); same != ways.end())
      return take(*same);
    warnings_.push_back(fmt::format(
        "the remembered algorithm cannot be used any more, so bits will differ: {}", name_of(product)));
  }
  if (!measures_) return;
  const ProductTimer timer(*plan.in_library, product, operands, workspace, stream);
  const auto [fastest, repeats] = timer.fastest(ways, product.partial_sums == PartialSums::in_order);
  take(fastest);
  if (!repeats)
    warnings_.push_back(fmt::format("no algorithm gave the same bits twice: {}", name_of(product)));
}

Gemm::Plan& Gemm::plan_of(const ColumnProduct& product, const ColumnOperands& operands,
                          const Tensor& workspace, cudaStream_t stream) {
  std::unique_ptr<Plan>& plan = plans_[product];
  if (!plan) {
    auto made = std::make_unique<Plan>(library_->product(product, operands));
    choose(*made, product, operands, workspace, stream);
    plan = std::move(made);
  }
  return *plan;
}

void Gemm::run(const GemmShape& shape, const GemmOperands& operands, const Tensor& workspace,
               cudaStream_t stream) {
  const auto [a, b, c, residual, a_factor, b_factor, scale] = operands;
  require(shape.m > 0 && shape.n > 0 && shape.k > 0, "a matrix product of nothing");
  require(residual == nullptr || shape.accumulate == Accumulate::no, "a product adds to one matrix only");
  require(workspace.bytes() == 0 || reinterpret_cast<std::uintptr_t>(workspace.data) % 256 == 0,
          "the workspace of matrix products is not aligned to 256 bytes");
  const void* const added = residual == nullptr ? c : residual;
  ColumnProduct product = by_columns(shape);
  product.adds = residual != nullptr || shape.accumulate == Accumulate::yes;
  product.in_place = added == c;
  product.tf32 = tf32_ && shape.in == DType::float32;
  product.partial_sums = partial_sums(shape.out, deterministic_);
  product.alignment = {alignment_of(b, b), alignment_of(a, a), alignment_of(c, added)};
  product.workspace_bytes = workspace.bytes();
  product.multiprocessors = multiprocessors_;
  try {
    const ColumnOperands by_column{b, a, added, c, b_factor, a_factor, scale};
    Plan& plan = plan_of(product, by_column, workspace, stream);
    plan.in_library->run(plan.way, by_column, workspace.data, stream);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", describe(shape), error.what()));
  }
}

}  // namespace llampi::device::cuda
