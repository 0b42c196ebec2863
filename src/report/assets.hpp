// SPDX-License-Identifier: Apache-2.0
// Files of this folder, which the build puts into the program (cmake/EmbedFiles.cmake).
#pragma once

#include <string_view>

namespace llampi::report {

extern const std::string_view kPageHtml, kPageCss, kPageJs;

}  // namespace llampi::report
