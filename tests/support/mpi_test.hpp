// SPDX-License-Identifier: Apache-2.0
// For tests that run on several ranks (llampi_test with RANKS).
#pragma once

#include "llampi/comm/forward.hpp"

namespace llampi::test {

/// The one world of the test program. All ranks run the same tests in the same order.
comm::World& test_world();

/// Of test_world(), for tests that need no more of it.
int test_rank();
int test_ranks();
void wait_for_all_ranks();

}  // namespace llampi::test
