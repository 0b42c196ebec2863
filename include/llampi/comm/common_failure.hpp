// SPDX-License-Identifier: Apache-2.0
// Failures that all ranks throw in the same way, as opposed to failures of one rank.
#pragma once

#include <exception>

#include "llampi/core/error.hpp"

namespace llampi::comm {

/// An error that every rank throws in the same way: one of them may print it for all.
class CommonError : public Error {
 public:
  using Error::Error;
};

/// The UserError or CommonError that `work` throws, or null. Anything else leaves at once: it is of this rank
/// alone, and other ranks may wait for this one.
template <class Callable>
std::exception_ptr common_failure(const Callable& work) {
  try {
    work();
  } catch (const UserError&) {
    return std::current_exception();
  } catch (const CommonError&) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace llampi::comm
