// SPDX-License-Identifier: Apache-2.0
// Streams for tests of parts that give them no purpose: two urgent ones and two others.
#pragma once

#include "llampi/device/runtime.hpp"

namespace llampi::test {

inline constexpr device::Stream kUnshard = device::Stream::urgent(0, "unshard");
inline constexpr device::Stream kReduce = device::Stream::urgent(1, "reduce");
inline constexpr device::Stream kCopy = device::Stream::other(0, "copy");
inline constexpr device::Stream kCopyOut = device::Stream::other(1, "d2h");

}  // namespace llampi::test
