// SPDX-License-Identifier: Apache-2.0
// The texts of input/machines, which the build puts into the program (cmake/EmbedFiles.cmake).
#pragma once

#include <string_view>

namespace llampi::plan {

extern const std::string_view kH100Json, kH200Json, kA100Json, kWorkstation2CoresJson;

}  // namespace llampi::plan
