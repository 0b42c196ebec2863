// SPDX-License-Identifier: Apache-2.0
// Runs as one HTML page that needs nothing but a browser.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "llampi/report/run.hpp"

namespace llampi::report {

/// The page: src/report/page.html with its style, its script and the runs as JSON in it. Curves of more than 4000 steps and of more
/// than 1000 evaluations are thinned: means of consecutive values, of steps with the least and the largest one. Of more than 1000
/// checkpoints some are marked. So a run takes about 1.5 MB at most.
/// @param now when it is made: seconds since 1970
std::string page(std::span<const Run> runs, double now);

/// Whether a file is such a page, which a new one may replace.
bool is_page(const std::filesystem::path& file);

}  // namespace llampi::report
