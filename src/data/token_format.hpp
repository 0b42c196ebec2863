// Names in a token file, for its reader and its writer.
#pragma once

#include <cstdint>

namespace llampi::token_format {

inline constexpr char kFormat[] = "llampi-tokens";
inline constexpr std::int64_t kVersion = 1;

}  // namespace llampi::token_format
