// SPDX-License-Identifier: Apache-2.0
// llampi generate
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/adapter_option.hpp"
#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/ranks.hpp"
#include "cli/text_options.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/core/text.hpp"
#include "llampi/infer/generate.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kGenerateUsage =
    R"(Usage: [mpirun -n RANKS] llampi generate --weights FOLDER|FILE --prompt TEXT [OPTIONS]

Continues a text or, with --chat, answers a user's prompt. GPUs compute in bfloat16, CPUs in float32.
)";

struct GenerateRequest {
  std::string weights, adapter;
  infer::GenerateOptions options;
  bool json = false;
};

std::vector<Option> options_of(GenerateRequest& r) {
  infer::GenerateOptions& o = r.options;
  constexpr Range kTokens{.low = 1, .high = infer::kMostTokensToGenerate};
  constexpr Range kProbability{.low = 0, .high = 1, .includes_low = false};
  return {
      {"weights",
       &r.weights,
       "Hugging Face folder, checkpoint, or run folder (its newest checkpoint)",
       {.name = "FOLDER|FILE"}},
      adapter_option(r.adapter),
      {"prompt", &o.prompt, "text to continue; with --chat, to answer", {.name = "TEXT"}},
      {"chat", &o.chat, "apply the chat template to the prompt and print the answer", {}, true},
      {"system", &o.system, "--chat: system message", {.name = "TEXT"}},
      {"max-tokens", &o.max_tokens, "maximum number of tokens to generate", {.range = kTokens}},
      {"temperature",
       &o.temperature,
       "sampling temperature; 0: greedy, always the most likely token",
       {.range = kAtLeastZero}},
      {"top-p",
       &o.top_p,
       "nucleus sampling: sample from the most likely tokens whose probabilities add up to this",
       {.range = kProbability}},
      {"seed", &o.seed, "random seed of the sampling"},
      {"stop",
       &o.stop,
       "additional end tokens, by name or id (a number is an id), separated by spaces",
       {.name = "TOKENS"}},
      tokenizer_option(o.text),
      template_option(o.text.chat_template, "--chat: "),
      template_date_option(o.text.template_date, "--chat: "),
      device_option(o.compute),
      threads_option(o.compute.threads),
      {"json",
       &r.json,
       "print a JSON object: prompt, completion, tokens, stopped and, without --chat, text (prompt and completion)",
       {},
       true},
  };
}

GenerateRequest parse_generation(const Arguments& arguments, const Log& log) {
  GenerateRequest request;
  const CommandLine given = assign_command_line(arguments, options_of(request), 0, log);
  require_option(!request.weights.empty(), "generate", "weights");
  if (request.options.prompt.empty())
    throw_user_error("generate needs a --prompt that is not empty; see llampi generate --help");
  for (const char* of_chat : {"system", "template", "template-date"})
    if (given.has(of_chat) && !request.options.chat) throw_user_error("--{} requires --chat", of_chat);
  return request;
}

std::string generation_json(const GenerateRequest& r, const infer::Generation& made) {
  nlohmann::ordered_json json{{"prompt", r.options.prompt},
                              {"completion", made.completion},
                              {"tokens", made.tokens},
                              {"stopped", made.stopped}};
  if (!r.options.chat) json["text"] = r.options.prompt + made.completion;
  // Single tokens may be parts of characters; JSON must be UTF-8.
  return json_text(json);
}

}  // namespace

Manual generate_manual() { return manual_of<GenerateRequest>(kGenerateUsage); }

int generate_command(const Arguments& arguments) {
  return run_on_ranks([&](comm::World& world) {
    const bool speaks = world.rank() == 0;
    const Log log = console_log(speaks, stderr);
    GenerateRequest r;
    comm::agree(world, [&] { r = parse_generation(arguments, log); });
    find_model(world, r.weights, r.adapter, log);
    r.options.text.adapter = r.adapter;
    comm::agree(world, [&] {
      if (!r.options.text.tokenizer.empty()) return;
      r.options.text.folders =
          with_source("--weights ", r.weights, [&] { return folders_of_run(r.weights, log); });
    });
    std::string before = r.options.chat ? "" : r.options.prompt;  // comes with the first piece
    const bool is_shown = is_terminal(stdout);
    std::string half;  // of a control character in UTF-8
    const auto emit = [&](std::string piece) {
      if (is_shown) {  // what the model makes up must not control the terminal
        piece = std::exchange(half, "") + piece;
        if (piece.ends_with('\xc2')) half = piece.back(), piece.pop_back();
        piece = replace_controls(piece, '\0', "\n\t");
        std::erase(piece, '\0');
      }
      if (!r.json) print(std::exchange(before, "") + piece);
    };
    const auto made = with_source("--weights ", r.weights, [&] {
      return with_source("--adapter ", r.adapter,
                         [&] { return infer::generate(world, r.weights, r.options, emit, log); });
    });
    if (speaks) print((r.json ? generation_json(r, made) : before) + "\n");
    if (!made.warning.empty()) log.warning("{}", made.warning);
    return kDone;
  });
}

}  // namespace llampi::cli
