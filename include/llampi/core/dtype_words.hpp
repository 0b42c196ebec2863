// SPDX-License-Identifier: Apache-2.0
// The words of DType: those of PyTorch and of the configuration.
#pragma once

#include "llampi/core/tensor.hpp"
#include "llampi/core/words.hpp"

namespace llampi {

constexpr auto word_table(DType) {
  return std::to_array<Word<DType>>({{DType::float64, "float64"},
                                     {DType::float32, "float32"},
                                     {DType::bfloat16, "bfloat16"},
                                     {DType::float16, "float16"},
                                     {DType::int64, "int64"},
                                     {DType::int32, "int32"},
                                     {DType::float8_e4m3fn, "float8_e4m3fn"},
                                     {DType::float8_e5m2, "float8_e5m2"},
                                     {DType::int8_blocks, "int8"}});
}

}  // namespace llampi
