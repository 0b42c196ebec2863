// What a wrong access to emulated memory says before it ends the program.
#pragma once

namespace llampi::emulation {

/// From now on, a segmentation fault is explained on the error output. Does nothing when called again.
void explain_faults();

}  // namespace llampi::emulation
