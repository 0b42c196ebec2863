// llampi evaluate
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/ranks.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kUsage =
    "Usage: [mpirun -n RANKS] llampi evaluate --weights FOLDER|FILE --data FILE --seq-len N [OPTIONS]\n\n"
    "Mean loss of a model over all samples of a token file. GPUs compute in bfloat16, CPUs in float32.\n";

struct Request {
  std::string weights, data;
  EvaluateOptions options;
  bool json = false;
};

std::vector<Option> options_of(Request& r) {
  constexpr Range kMicroBatch{.low = 1, .high = 1e6};
  EvaluateOptions& o = r.options;
  return {
      {"weights", &r.weights, "Hugging Face folder, or llampi checkpoint", {.name = "FOLDER|FILE"}},
      {"data", &r.data, "token file", {.name = "FILE"}},
      {"seq-len", &o.seq_len, "sequence length in tokens", {.range = kAtLeastOne}},
      {"micro-batch", &o.micro_batch, "sequences per rank and forward pass", {.range = kMicroBatch}},
      device_option(o.compute),
      threads_option(o.compute.threads),
      {"json", &r.json, "print one JSON object: loss, perplexity, tokens", {}, true},
  };
}

Request parse(const Arguments& arguments) {
  Request request;
  assign_command_line(arguments, options_of(request), 0);
  require_option(!request.weights.empty(), "evaluate", "weights");
  require_option(!request.data.empty(), "evaluate", "data");
  require_option(request.options.seq_len != 0, "evaluate", "seq-len");
  return request;
}

void print_result(const Evaluation& e, bool json) {
  if (json) {
    // Numbers that are not finite become null.
    print(
        nlohmann::ordered_json{{"loss", e.loss}, {"perplexity", e.perplexity}, {"tokens", e.tokens}}.dump() +
        "\n");
  } else {
    print(fmt::format("loss {:.6f}, perplexity {:.4f}, {} tokens\n", e.loss, e.perplexity, e.tokens));
  }
}

}  // namespace

int evaluate_command(const Arguments& arguments) {
  if (asks_for_help(arguments)) {
    Request defaults;
    print(kUsage + options_help(options_of(defaults)));
    return kDone;
  }
  return run_on_ranks([&](World& world) {
    const Request r = parse(arguments);
    const bool speaks = world.rank() == 0;
    const Evaluation result = evaluate(world, r.weights, r.data, r.options, console_log(speaks, stderr));
    if (speaks) print_result(result, r.json);
    return kDone;
  });
}

}  // namespace llampi::cli
