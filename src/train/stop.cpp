#include "train/stop.hpp"

#include <atomic>

#include "llampi/train/train.hpp"

namespace llampi {
namespace {

// A signal can only reach the loop through a global; this is the one.
std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void request_stop() { stop_flag.store(true); }
bool take_stop_request() { return stop_flag.exchange(false); }

}  // namespace llampi
