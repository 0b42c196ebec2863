// SPDX-License-Identifier: Apache-2.0
// JSON as text, whatever is in its strings.
#pragma once

#include <string>

namespace llampi {

/// What is not UTF-8, as names of files may be, becomes U+FFFD; nlohmann's dump() throws there.
/// @param json of nlohmann @param indent -1: in one line
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace llampi
