#pragma once

namespace llampi {

/// True if request_stop() was called in this process since the last call.
bool take_stop_request();
/// The same of request_flight_record().
bool take_flight_record_request();

}  // namespace llampi
