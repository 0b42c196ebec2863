// SPDX-License-Identifier: Apache-2.0
// Values of keys that had another name in an older version. Command lines, configuration files and checkpoints may still have
// the old one.
#pragma once

#include <string>

namespace llampi::train {

/// What `value` of `key` is called now: "native" for "own", in any case, of run.attention. Any other value as it is.
std::string current_value(const std::string& key, const std::string& value);

}  // namespace llampi::train
