// SPDX-License-Identifier: Apache-2.0
// Time, measured and told.
#pragma once

#include <string>

namespace llampi {

/// Seconds of a clock that never jumps, since some moment that this machine's processes share.
double steady_seconds();
/// Seconds since 1970, UTC: of a clock that may be set.
double unix_seconds();
/// Seconds since 1970, to whole ones, as ISO 8601 writes them: "2026-01-31T23:59:59Z".
std::string utc_time(double unix_seconds);
/// The same of now.
std::string utc_now();
/// Seconds since 1970 of such a text; not a number if it is another one.
double seconds_of_utc(const std::string& text);

}  // namespace llampi
