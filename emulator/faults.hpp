// SPDX-License-Identifier: Apache-2.0
// What a wrong access to emulated memory, or one that is not aligned, says before it ends the program. A kernel's first write to
// a page of shared variables (static_shared.hpp) is a fault too, which is no mistake: it goes on. So no other handler of SIGSEGV
// may be installed later.
#pragma once

namespace llampi::emulator {

/// From now on, such an access is explained on the error output. Does nothing when called again.
void explain_faults();

}  // namespace llampi::emulator
