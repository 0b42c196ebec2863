// SPDX-License-Identifier: Apache-2.0
// Stopping a run from elsewhere: from a signal handler, or another thread.
#pragma once

namespace llampi::train {

/// Requests a clean stop, as SIGUSR1, SIGTERM, SIGINT and SIGHUP do: train() drops the step under way before its next
/// micro-batch, saves and returns Outcome::stopped.
void request_stop();
/// True if request_stop() was called in this process since the last call.
bool take_stop_request();

}  // namespace llampi::train
