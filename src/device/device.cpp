#include "llampi/device/device.hpp"

namespace llampi {

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

}  // namespace llampi
