// SPDX-License-Identifier: Apache-2.0
// For tests that run on several ranks (llampi_test with RANKS).
#pragma once

#include "llampi/comm/comm.hpp"

namespace llampi::test {

/// The one world of the test program. All ranks run the same tests in the same order.
comm::World& test_world();

}  // namespace llampi::test
