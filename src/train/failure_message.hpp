// SPDX-License-Identifier: Apache-2.0
// What a failure that was caught on the way is called.
#pragma once

#include <exception>
#include <string>

#include "llampi/core/config_error.hpp"

namespace llampi::train {

/// Its sentence. @throws what is no std::exception
inline std::string message_of(const std::exception_ptr& failure, const ConfigError::Naming& name_of) try {
  std::rethrow_exception(failure);
} catch (const std::exception& error) {
  return sentence_of(error, name_of);
}

}  // namespace llampi::train
