// SPDX-License-Identifier: Apache-2.0
#include "llampi/device/runtime.hpp"

#include "llampi/core/error.hpp"

namespace llampi::device {

namespace {
[[noreturn]] void refuse_capture() { throw Error("internal error: this device cannot capture work"); }
}  // namespace

void Runtime::synchronize_all() {
  for (const Stream stream : kDeviceStreams) synchronize(stream);
}

void Runtime::begin_capture() { refuse_capture(); }
Graph Runtime::end_capture() { refuse_capture(); }
bool Runtime::instantiate(Graph&) { refuse_capture(); }
void Runtime::replay(const Graph&) { refuse_capture(); }

}  // namespace llampi::device
