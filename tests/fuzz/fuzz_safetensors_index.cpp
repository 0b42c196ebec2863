// SPDX-License-Identifier: Apache-2.0
// The index of a folder with several safetensors files.
#include "checkpoint/weights_folder.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view text) {
    const auto index = llampi::checkpoint::parse_safetensors_index(std::string(text), "index");
    llampi::fuzz::expect(!index.empty(), "an index names something");
    for (const auto& [tensor, file] : index) {
      const bool inside = !file.empty() && file != "." && file != ".." && file.find('/') == file.npos &&
                          file.find('\0') == file.npos;
      llampi::fuzz::expect(inside, "files are in the index's folder");
    }
  });
}
