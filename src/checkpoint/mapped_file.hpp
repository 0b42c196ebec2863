// A whole file in memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace llampi {

/// Pages are read from disk when they are touched.
class MappedFile {
 public:
  /// @throws UserError if it cannot be read
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace llampi
