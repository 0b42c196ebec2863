// SPDX-License-Identifier: Apache-2.0
// A picture of what a step's buffers hold: `llampi plan --svg`.
#pragma once

#include <string>

#include "llampi/plan/report.hpp"

namespace llampi::plan {

/// Bytes of the device's buffers over the actions of a training step, in their order: one area for each category, on top of each other, what is
/// kept for the whole run included. A dashed line is at what the step takes of the arena, which is at least the peak: buffers have gaps between them.
/// One SVG file that needs nothing else, with colors for light and dark backgrounds. Its root has the attributes data-peak-bytes and
/// data-planned-bytes (ArenaReport::step). A column of the picture shows the action among its own that needs most.
/// @param compiled with a training step, of the job
std::string memory_svg(const Job& job, const fsdp::CompiledModel& compiled);

}  // namespace llampi::plan
