// llampi evaluate
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/ranks.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kUsage =
    "Usage: [mpirun -n RANKS] llampi evaluate --weights FOLDER|FILE --data FILE --seq-len N [OPTIONS]\n\n"
    "Mean loss of a model over all samples of a token file.\n";

struct Request {
  std::string weights, data;
  std::int64_t seq_len = 0;
  std::int64_t micro_batch = 1;
  int threads = 0;
  bool json = false;
};

std::vector<Option> options_of(Request& r) {
  constexpr Range kMicroBatch{.low = 1, .high = 1e6};
  return {
      {"weights", &r.weights, "Hugging Face folder, or llampi checkpoint", {.name = "FOLDER|FILE"}},
      {"data", &r.data, "token file", {.name = "FILE"}},
      {"seq-len", &r.seq_len, "sequence length in tokens", {.range = kAtLeastOne}},
      {"micro-batch", &r.micro_batch, "sequences per rank and forward pass", {.range = kMicroBatch}},
      {"threads",
       &r.threads,
       "threads per rank; 0: OMP_NUM_THREADS or, if that is not set, cores / ranks on the node",
       {.range = kAtLeastZero}},
      {"json", &r.json, "print one JSON object: loss, perplexity, tokens", {}, true},
  };
}

Request parse(const Arguments& arguments) {
  Request request;
  assign_command_line(arguments, options_of(request), 0);
  require_option(!request.weights.empty(), "evaluate", "weights");
  require_option(!request.data.empty(), "evaluate", "data");
  require_option(request.seq_len != 0, "evaluate", "seq-len");
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
    const Evaluation result =
        evaluate(world, r.weights, r.data, r.seq_len, r.micro_batch, r.threads, console_log(speaks, stderr));
    if (speaks) print_result(result, r.json);
    return kDone;
  });
}

}  // namespace llampi::cli
