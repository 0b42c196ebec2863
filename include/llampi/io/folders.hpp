// SPDX-License-Identifier: Apache-2.0
// What is in a folder, and where one would be made.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace llampi::io {

/// Paths of all that is in it, in any order. Where `error` is set, those that were found before it.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder, std::error_code& error);

/// `path` and the folders that it lies in, as far as there is nothing of their names; the innermost first.
std::vector<std::filesystem::path> missing_paths(const std::filesystem::path& path);

/// `path`, made absolute, or the nearest folder above it that there is.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

/// How a model of the Hugging Face Hub is downloaded, for a missing path that looks like the name of one, as the end of a message;
/// otherwise empty.
std::string hub_advice(const std::filesystem::path& missing);

}  // namespace llampi::io
