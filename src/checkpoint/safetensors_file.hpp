// The safetensors format: 8 bytes little-endian length of the header, the header as JSON, then the data.
//   {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {"key":
//   "text"}}
// Offsets count bytes from the end of the header. Specification: github.com/huggingface/safetensors, README.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/mapped_file.hpp"
#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi {

class SafetensorsFile {
 public:
  /// Maps the file and checks its header: every tensor lies inside the file and has the size of its shape.
  /// @throws UserError if it is missing, truncated or malformed
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// In alphabetical order.
  std::vector<TensorInfo> tensors() const;

  /// Elements [begin, begin + elements) of a tensor, as float32; touches only their part of the file.
  /// @throws UserError if the tensor is not F32, BF16 or F16
  void read(const std::string& name, std::int64_t begin, std::int64_t elements, float* destination) const;

 private:
  struct Entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    const std::byte* data = nullptr;
  };

  void parse();

  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, Entry> entries_;
};

}  // namespace llampi
