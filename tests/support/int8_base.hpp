// SPDX-License-Identifier: Apache-2.0
// What a base in 8 bits is expected to be: DType::int8_blocks once more, by the definition and not by the program's functions.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/model/model.hpp"
#include "support/oracle.hpp"

namespace llampi::test {

/// Each 128 elements as integers of [-127, 127] times a scale, as float32 has them.
/// @param values a multiple of 128 of them
template <class Float>
void round_to_blocks(std::vector<Float>& values);
extern template void round_to_blocks(std::vector<float>&);
extern template void round_to_blocks(std::vector<double>&);

/// A matrix of the blocks.
bool is_kept_in_int8(const std::string& name, const std::vector<std::int64_t>& shape);

/// All of a parameter of the base, as a run with such a base reads it: in blocks, or else in bfloat16.
void round_base(const model::Parameter& parameter, std::vector<double>& values);

/// "lora_all", with matrices of whole blocks. Nothing that it expects is of that model.
oracle::Fixture int8_fixture();

}  // namespace llampi::test
