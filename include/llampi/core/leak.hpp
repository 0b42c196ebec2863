// SPDX-License-Identifier: Apache-2.0
// Objects that are deliberately never destroyed.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace llampi {

/// Moves `value` to memory that is never freed, and never destroys it: another thread, or MPI, may still use what it owns, or its
/// destructor would not return. For the end of a job after an error.
template <class T>
void leak(T&& value) {
  static_assert(!std::is_lvalue_reference_v<T>, "give it away with std::move()");
  static_cast<void>(new T(std::forward<T>(value)));
}
template <class T, class Deleter>
void leak(std::unique_ptr<T, Deleter>&& value) noexcept {
  static_cast<void>(value.release());
}

}  // namespace llampi
