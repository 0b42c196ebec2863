// SPDX-License-Identifier: Apache-2.0
// A whole safetensors file: its header is parsed, and every tensor is read that can be.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/tensor_list.hpp"
#include "fuzz.hpp"

namespace {

using namespace llampi;

/// A file in memory with these bytes.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    fuzz::expect(descriptor_ >= 0, "memfd_create works");
    fuzz::expect(write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
                 "memory can be written");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void read_all(const llampi::checkpoint::SafetensorsFile& file, std::size_t bytes) {
  for (const auto& [name, entry] : file.tensors()) {
    const std::int64_t elements = llampi::checkpoint::elements_of(entry.shape);
    fuzz::expect(elements <= static_cast<std::int64_t>(bytes), "tensors lie inside the file");
    std::vector<float> values(static_cast<std::size_t>(elements));
    file.read(name, 0, elements, values.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::refuse_or_accept(data, size, [](std::string_view bytes) {
    const MemoryFile memory(bytes);
    read_all(llampi::checkpoint::SafetensorsFile(memory.path()), bytes.size());
  });
}
