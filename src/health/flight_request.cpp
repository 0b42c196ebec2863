// SPDX-License-Identifier: Apache-2.0
#include "llampi/health/flight_request.hpp"

#include <atomic>

namespace llampi::health {
namespace {

std::atomic<bool> flag{false};  // a signal can only reach the watchdog through a global
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void request_flight_record() { flag.store(true); }
bool take_flight_record_request() { return flag.exchange(false); }

}  // namespace llampi::health
