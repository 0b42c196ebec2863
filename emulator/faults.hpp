// SPDX-License-Identifier: Apache-2.0
// What a wrong access to emulated memory, or one that is not aligned, says before it ends the program.
#pragma once

namespace llampi::emulator {

/// From now on, such an access is explained on the error output. Does nothing when called again.
void explain_faults();

}  // namespace llampi::emulator
