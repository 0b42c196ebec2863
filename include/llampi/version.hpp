// SPDX-License-Identifier: Apache-2.0
// The version of this library, for the preprocessor and for the program. CMakeLists.txt reads it here.
#pragma once

#define LLAMPI_VERSION_MAJOR 0
#define LLAMPI_VERSION_MINOR 1
#define LLAMPI_VERSION_PATCH 0

#define LLAMPI_VERSION_TEXT_OF(number) #number
#define LLAMPI_VERSION_TEXT(major, minor, patch) \
  LLAMPI_VERSION_TEXT_OF(major) "." LLAMPI_VERSION_TEXT_OF(minor) "." LLAMPI_VERSION_TEXT_OF(patch)
/// "0.1.0"
#define LLAMPI_VERSION_STRING \
  LLAMPI_VERSION_TEXT(LLAMPI_VERSION_MAJOR, LLAMPI_VERSION_MINOR, LLAMPI_VERSION_PATCH)

namespace llampi {

inline constexpr int kVersionMajor = LLAMPI_VERSION_MAJOR;  ///< another one may break what uses the library
inline constexpr int kVersionMinor = LLAMPI_VERSION_MINOR;  ///< while kVersionMajor is 0, so may this
inline constexpr int kVersionPatch = LLAMPI_VERSION_PATCH;
inline constexpr const char* kVersion = LLAMPI_VERSION_STRING;  ///< "major.minor.patch"

}  // namespace llampi
