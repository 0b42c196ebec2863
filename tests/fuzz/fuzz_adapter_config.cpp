// SPDX-License-Identifier: Apache-2.0
// adapter_config.json of PEFT's folders, and the attribute of checkpoints.
#include <cmath>

#include "fuzz.hpp"
#include "llampi/checkpoint/adapter.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view text) {
    const auto info = llampi::checkpoint::parse_adapter(std::string(text), "adapter_config.json");
    llampi::fuzz::expect(info.config.rank >= 1, "an adapter has a rank");
    llampi::fuzz::expect(std::isfinite(info.config.alpha), "a scaling factor is a number");
    const auto again =
        llampi::checkpoint::parse_adapter(llampi::checkpoint::adapter_text(info, 1), "the text of it");
    llampi::fuzz::expect(again.config.rank == info.config.rank && again.base_sums == info.base_sums,
                         "what is written is read");
  });
}
