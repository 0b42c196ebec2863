// SPDX-License-Identifier: Apache-2.0
// Autotuning: chooses the fastest among several ways to compute the same result, by trying them. Different ways sum in
// different orders, so a run that must reproduce the bits of another one must make the same choices.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace llampi::device {

/// By what is computed, how: texts of the device's own.
using AlgorithmChoices = std::map<std::string, std::string>;

class Autotuner {
 public:
  virtual ~Autotuner() = default;
  /// What choices are good for: "NVIDIA H100 80GB HBM3, driver 13.0, cuBLASLt 13.1.0".
  virtual std::string key() const = 0;
  /// From now on these are made, and others measured or left to the library; what was chosen so far is
  /// forgotten.
  virtual void adopt(const AlgorithmChoices& choices) = 0;
  /// While it is on, the first operation of its kind tries all ways, several times: what it adds to is
  /// overwritten, so nothing in memory may be of worth. A few seconds for the operations of a step.
  virtual void measure(bool on) = 0;
  /// That were made since adopt().
  virtual AlgorithmChoices choices() const = 0;
  /// Since adopt(), a sentence each: an adopted way that does not exist, so that another one was taken; an
  /// operation that must be deterministic but has no way that repeats its bits.
  virtual std::vector<std::string> warnings() const = 0;
};

}  // namespace llampi::device
