// llampi generate
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/ranks.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kUsage =
    "Usage: [mpirun -n RANKS] llampi generate --weights FOLDER|FILE --prompt TEXT [OPTIONS]\n\n"
    "Continues a text. GPUs compute in bfloat16, CPUs in float32.\n";

struct Request {
  std::string weights;
  GenerateOptions options;
  bool json = false;
};

std::vector<Option> options_of(Request& r) {
  GenerateOptions& o = r.options;
  constexpr Range kTokens{.low = 1, .high = kMostTokensToGenerate};
  constexpr Range kProbability{.low = 0, .high = 1, .includes_low = false};
  return {
      {"weights", &r.weights, "Hugging Face folder, or llampi checkpoint", {.name = "FOLDER|FILE"}},
      {"prompt", &o.prompt, "text to continue"},
      {"max-tokens", &o.max_tokens, "tokens to add", {.range = kTokens}},
      {"temperature", &o.temperature, "0: always the most likely token", {.range = kAtLeastZero}},
      {"top-p",
       &o.top_p,
       "choose among the most likely tokens that together have this probability",
       {.range = kProbability}},
      {"seed", &o.seed, "of the choices"},
      device_option(o.compute),
      threads_option(o.compute.threads),
      {"json", &r.json, "print one JSON object: prompt, text (both together)", {}, true},
  };
}

Request parse(const Arguments& arguments) {
  Request request;
  assign_command_line(arguments, options_of(request), 0);
  require_option(!request.weights.empty(), "generate", "weights");
  require_option(!request.options.prompt.empty(), "generate", "prompt");
  return request;
}

}  // namespace

int generate_command(const Arguments& arguments) {
  if (asks_for_help(arguments)) {
    Request defaults;
    print(kUsage + options_help(options_of(defaults)));
    return kDone;
  }
  return run_on_ranks([&](World& world) {
    const Request r = parse(arguments);
    const bool speaks = world.rank() == 0;
    bool started = false;
    const auto emit = [&](const std::string& piece) {
      if (!r.json) print(started ? piece : r.options.prompt + piece);
      started = true;
    };
    const std::string text = generate(world, r.weights, r.options, emit, console_log(speaks, stderr));
    if (!speaks) return kDone;
    const nlohmann::ordered_json json{{"prompt", r.options.prompt}, {"text", text}};
    // Single tokens may be parts of characters; JSON must be UTF-8.
    print((r.json ? json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "") + "\n");
    return kDone;
  });
}

}  // namespace llampi::cli
