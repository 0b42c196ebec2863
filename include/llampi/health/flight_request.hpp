// SPDX-License-Identifier: Apache-2.0
// Asking for a flight record from elsewhere: from a signal handler, or another thread.
#pragma once

namespace llampi::health {

/// Writes this rank's flight record, if the watchdog is on, as SIGTERM does: the process may be killed soon.
/// It is removed again where train() returns.
void request_flight_record();

/// True if request_flight_record() was called in this process since the last call.
bool take_flight_record_request();

}  // namespace llampi::health
