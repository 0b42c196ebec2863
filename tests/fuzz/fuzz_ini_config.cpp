// SPDX-License-Identifier: Apache-2.0
// A configuration file; what is accepted is given back by the file that a run writes.
#include "cli/options.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view text) {
    namespace cli = llampi::cli;
    const std::string resolved = llampi::cli::to_ini(llampi::cli::parse_ini(std::string(text), "small.ini"));
    bool same = false;
    try {
      same = llampi::cli::to_ini(llampi::cli::parse_ini(resolved, "config.ini")) == resolved;
    } catch (const llampi::UserError&) {  // refused is not the same
    }
    llampi::fuzz::expect(same, "a resolved configuration can be given back");
  });
}
