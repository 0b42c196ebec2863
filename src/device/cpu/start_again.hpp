// SPDX-License-Identifier: Apache-2.0
// The program once more, in its own place.
#pragma once

namespace llampi::device {

/// Same process, same arguments, same name in lists of processes; with the environment as it is now. Returns
/// only if it could not be started.
void start_again(char** argv);

}  // namespace llampi::device
