// SPDX-License-Identifier: Apache-2.0
// Documents that share a sequence do not feel each other, in a whole step.
#pragma once

#include "llampi/comm/forward.hpp"
#include "support/trajectory.hpp"

namespace llampi::test {

/// Cuts the sequences of step 1 into three documents each, with labels in the second only, and expects that
/// other tokens in the first and third change no bit of loss, gradient norm and updated parameters.
/// Collective.
void expect_documents_apart(comm::World& world, const oracle::Fixture& fixture,
                            const TrajectoryOptions& options);

}  // namespace llampi::test
