// SPDX-License-Identifier: Apache-2.0
#include "llampi/device/runtime.hpp"

#include "llampi/core/error.hpp"

namespace llampi::device {

const char* to_string(Stream stream) {
  switch (stream) {
    case Stream::compute:
      return "compute";
    case Stream::unshard:
      return "unshard";
    case Stream::reduce:
      return "reduce";
    case Stream::copy:
      return "copy";
    case Stream::copy_out:
      return "copy_out";
    case Stream::host:
      return "host";
  }
  return "unknown";
}

namespace {
[[noreturn]] void refuse_capture() { throw Error("internal error: this device cannot capture work"); }
}  // namespace

void Runtime::begin_capture() { refuse_capture(); }
Graph Runtime::end_capture() { refuse_capture(); }
void Runtime::replay(const Graph&) { refuse_capture(); }

}  // namespace llampi::device
