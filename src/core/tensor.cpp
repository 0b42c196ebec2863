#include "llampi/core/tensor.hpp"

namespace llampi {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "float64";
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::int64:
      return "int64";
    case DType::int32:
      return "int32";
  }
  return "unknown";
}

}  // namespace llampi
