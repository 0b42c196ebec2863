// SPDX-License-Identifier: Apache-2.0
#include "selfcheck/numbers.hpp"

#include <cmath>
#include <limits>

#include "llampi/core/elements.hpp"

namespace llampi::selfcheck {

Numbers rounded(Numbers numbers, DType dtype) {
  with_elements(dtype, [&](auto, auto narrow, auto widen) {
    for (double& x : numbers) x = static_cast<double>(widen(narrow(x)));
  });
  return numbers;
}

void upload_numbers(device::Runtime& device, const Numbers& numbers, Tensor target) {
  require(std::ssize(numbers) == target.elements(), "numbers for a tensor of another size");
  with_elements(target.dtype, [&](auto element, auto narrow, auto) {
    std::vector<decltype(element)> elements;
    for (const double x : numbers) elements.push_back(narrow(x));
    device.upload(target, elements.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  });
}

Numbers download_numbers(device::Runtime& device, Tensor source) {
  Numbers numbers;
  with_elements(source.dtype, [&](auto element, auto, auto widen) {
    std::vector<decltype(element)> elements(static_cast<std::size_t>(source.elements()));
    device.download(elements.data(), source, device::Stream::compute);
    device.synchronize(device::Stream::compute);
    for (const auto x : elements) numbers.push_back(static_cast<double>(widen(x)));
  });
  return numbers;
}

double distance(const Numbers& values, const Numbers& judged) {
  if (values.size() != judged.size()) return std::numeric_limits<double>::quiet_NaN();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - judged[i]) * (values[i] - judged[i]);
    norm += judged[i] * judged[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace llampi::selfcheck
