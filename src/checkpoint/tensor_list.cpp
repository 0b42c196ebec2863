// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_list.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "llampi/core/config_error.hpp"
#include "llampi/core/elements.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {
namespace {

/// "missing a, b and 3 more"; empty if there are none.
std::string summarize(const char* what, const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format("{} {}", what, names_text(names));
}

bool is_storable(DType dtype) {
  return dtype == DType::float32 || is_half(dtype) || dtype == DType::int8_blocks;
}

}  // namespace

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const auto extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) {
      throw Error(fmt::format("no tensor can have the shape {}", shape_text(shape)));
    }
  }
  return elements;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string names_text(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 5;
  if (names.size() <= kNamed) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kNamed, ", "),
                     names.size() - kNamed);
}

void require_same_tensors(const std::string& source, const std::vector<TensorInfo>& expected,
                          const std::vector<TensorInfo>& found) {
  std::map<std::string, const TensorInfo*> unmatched;
  for (const auto& tensor : found) unmatched.emplace(tensor.name, &tensor);

  std::vector<std::string> missing, misshaped, unexpected, problems;
  for (const auto& tensor : expected) {
    const auto match = unmatched.find(tensor.name);
    if (match == unmatched.end()) {
      missing.push_back(tensor.name);
      continue;
    }
    if (match->second->shape != tensor.shape) {
      misshaped.push_back(fmt::format("{} ({} where the model has {})", tensor.name,
                                      shape_text(match->second->shape), shape_text(tensor.shape)));
    }
    unmatched.erase(match);
  }
  for (const auto& tensor : found) {
    if (unmatched.contains(tensor.name)) unexpected.push_back(tensor.name);
  }

  for (const auto& problem : {summarize("missing", missing), summarize("unexpected", unexpected),
                              summarize("of another shape", misshaped)}) {
    if (!problem.empty()) problems.push_back(problem);
  }
  if (problems.empty()) return;
  const bool lacks_head = problems.size() == 1 && missing == std::vector<std::string>{"lm_head.weight"};
  throw ConfigError(
      {.problem = fmt::format("{} does not fit the model: {}", source, fmt::join(problems, "; ")),
       .remedy =
           std::string("use weights and a {model} that belong together") +
           (lacks_head ? ", or, if its head is its embedding, set tie_word_embeddings = true in config.json"
                       : "")});
}

void require_valid_pieces(const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces) {
  for (const auto& piece : pieces) {
    require(piece.tensor >= 0 && piece.tensor < static_cast<int>(tensors.size()),
            "a piece of an unknown tensor");
    const std::int64_t elements = elements_of(tensors[piece.tensor].shape);
    require(piece.begin >= 0 && piece.elements() >= 0 && piece.begin <= elements - piece.elements(),
            "a piece reaches beyond its tensor");
    require(piece.model || piece.elements() == 0, "a piece without memory");
    require(!piece.exp_avg == !piece.exp_avg_sq, "a piece with one moment of two");
    for (const Tensor& values : {piece.model, piece.exp_avg, piece.exp_avg_sq}) {
      if (!values) continue;
      require(values.elements() == piece.elements(), "a piece whose moments are of another length");
      require(is_storable(values.dtype), "a piece that is not float32, bfloat16, float16 or int8_blocks");
    }
  }
}

}  // namespace llampi::checkpoint
