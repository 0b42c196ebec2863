// SPDX-License-Identifier: Apache-2.0
// A run as text for a terminal.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "llampi/report/run.hpp"
#include "llampi/report/summary.hpp"

namespace llampi::report {

/// What the terminal can show.
struct Screen {
  int columns = 80;
  int rows = 24;     ///< at most
  bool utf8 = true;  ///< braille and block characters; otherwise ASCII alone
};

/// A curve in `rows` lines of `columns` characters. Values are spread over the width: the mean of the values of a column, or, where
/// there are fewer values than columns, lines between them. Gaps where there are none.
std::vector<std::string> plot(std::span<const double> values, int columns, int rows, bool utf8);

/// State, progress, numbers and curves of a run. Lines without their end, none longer than the screen is wide and no more than it
/// has rows. Characters of names that control a terminal or that it cannot show are question marks.
/// @param now seconds since 1970
std::vector<std::string> screen_lines(const Run& run, const Screen& screen, double now);

}  // namespace llampi::report
