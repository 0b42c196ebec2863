// SPDX-License-Identifier: Apache-2.0
// The names of `device` alone, for headers that only pass them on.
#pragma once

namespace llampi::device {

struct Batch;
class Device;
struct Fp8Counts;
class GpuLibrary;
struct GpuProperties;
class Operations;
class OperationSizes;

}  // namespace llampi::device
