// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/dtype_words.hpp"

namespace llampi {

const char* to_string(DType dtype) { return word_of(dtype); }

}  // namespace llampi
