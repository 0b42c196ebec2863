#include "train/stop.hpp"

#include <atomic>

#include "llampi/train/train.hpp"

namespace llampi {
namespace {

// A signal can only reach the loop and the watchdog through globals; these are the ones.
std::atomic<bool> stop_flag{false};
std::atomic<bool> flight_record_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void request_stop() { stop_flag.store(true); }
bool take_stop_request() { return stop_flag.exchange(false); }
void request_flight_record() { flight_record_flag.store(true); }
bool take_flight_record_request() { return flight_record_flag.exchange(false); }

}  // namespace llampi
