// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/stop.hpp"

#include <atomic>

namespace llampi::train {
namespace {

std::atomic<bool> flag{false};  // a signal can only reach the loop through a global
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void request_stop() { flag.store(true); }
bool take_stop_request() { return flag.exchange(false); }

}  // namespace llampi::train
