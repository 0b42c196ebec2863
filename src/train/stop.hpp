#pragma once

namespace llampi {

/// True if request_stop() was called in this process since the last call.
bool take_stop_request();

}  // namespace llampi
