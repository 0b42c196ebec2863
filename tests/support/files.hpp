// SPDX-License-Identifier: Apache-2.0
// Files that tests write and read, and errors that they expect.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "support/read_text.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {

/// For its lifetime the process may do nothing in `folder`. Root may write everywhere, so it becomes another
/// user.
class AsNobody {
 public:
  explicit AsNobody(const std::filesystem::path& folder) : folder_(folder), user_(geteuid()) {
    std::filesystem::permissions(folder, std::filesystem::perms::none);
    if (user_ == 0 && seteuid(65534) != 0) throw Error("seteuid failed");
  }
  ~AsNobody() {
    EXPECT_EQ(seteuid(user_), 0);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  std::filesystem::path folder_;
  uid_t user_;
};

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(LLAMPI_TEST_DATA) / "fixtures" / name;
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// The message of the UserError that `action` must throw; it must be one line.
inline std::string user_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return {};
}

}  // namespace llampi::test
