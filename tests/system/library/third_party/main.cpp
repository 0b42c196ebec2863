// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <llampi/core/tensor.hpp>
#include <llampi/version.hpp>
const char* const kHalf = llampi::to_string(llampi::DType::bfloat16);
int main() { std::printf("llampi %s %s\n", llampi::kVersion, kHalf); }
