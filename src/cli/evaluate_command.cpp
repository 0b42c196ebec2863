// SPDX-License-Identifier: Apache-2.0
// llampi evaluate
#include <nlohmann/json.hpp>

#include "cli/adapter_option.hpp"
#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/ranks.hpp"
#include "cli/text_options.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/core/text.hpp"
#include "llampi/infer/generate.hpp"
#include "llampi/train/evaluate.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kEvaluateUsage =
    R"(Usage: [mpirun -n RANKS] llampi evaluate --weights FOLDER|FILE --data FILE [--seq-len N] [OPTIONS]
       [mpirun -n RANKS] llampi evaluate --weights FOLDER|FILE --questions FILE [OPTIONS]

With --data: prints the mean loss of a model over all samples of a token file.
With --questions: prints how many questions the model answers correctly. Each line of the file is a
conversation, in the format of tokenize --format chat, that ends with the correct answer. The model
answers by greedy decoding; an answer is correct if the text is the same.
GPUs compute in bfloat16, CPUs in float32.
)";

struct EvaluateRequest {
  std::string weights, adapter, data, questions, answers;
  train::EvaluateOptions loss;
  infer::QuestionOptions asking;
  comm::DeviceOptions compute;
  bool json = false;
};

std::vector<Option> options_of(EvaluateRequest& r) {
  constexpr Range kMicroBatch{.low = 1, .high = 1e6};
  constexpr Range kTokens{.low = 0, .high = infer::kMostTokensToGenerate};
  return {
      {"weights",
       &r.weights,
       "Hugging Face folder, checkpoint, or run folder (its newest checkpoint)",
       {.name = "FOLDER|FILE"}},
      adapter_option(r.adapter),
      {"data", &r.data, "token file", {.name = "FILE"}},
      {"seq-len",
       &r.loss.seq_len,
       "--data: sequence length in tokens. 0: that of the token file's packed sequences, otherwise that of the run that "
       "wrote the checkpoint; required where neither is known",
       {.range = kAtLeastZero}},
      {"micro-batch",
       &r.loss.micro_batch,
       "--data: sequences per rank in each forward pass",
       {.range = kMicroBatch}},
      {"questions",
       &r.questions,
       "JSON lines file of conversations that end with the correct answer",
       {.name = "FILE"}},
      {"answers",
       &r.answers,
       "--questions: JSON lines file to write, with the model's answers",
       {.name = "FILE"}},
      {"overwrite",
       &r.asking.overwrite,
       "--questions: allow --answers to replace a file that was not written by --answers",
       {},
       true},
      {"max-tokens",
       &r.asking.max_tokens,
       "--questions: maximum tokens of an answer, including its end token; 0: 16 more than the correct answer has",
       {.range = kTokens}},
      tokenizer_option(r.asking.text),
      template_option(r.asking.text.chat_template, "--questions: "),
      template_date_option(r.asking.text.template_date, "--questions: "),
      device_option(r.compute),
      threads_option(r.compute.threads),
      {"json",
       &r.json,
       "print a JSON object: loss, perplexity, tokens (those with a loss); or accuracy, questions, correct",
       {},
       true},
  };
}

/// @param asks whether --questions is given, and not --data
void refuse_options_of_the_other(const CommandLine& given, bool asks) {
  for (const auto& [option, of_questions] : {std::pair("seq-len", false),
                                             {"micro-batch", false},
                                             {"answers", true},
                                             {"tokenizer", true},
                                             {"template", true},
                                             {"template-date", true},
                                             {"max-tokens", true}}) {
    if (given.has(option) && of_questions != asks)
      throw_user_error("--{} requires --{}; remove it", option, of_questions ? "questions" : "data");
  }
}

EvaluateRequest parse_evaluation(const Arguments& arguments, const Log& log) {
  EvaluateRequest request;
  const CommandLine given = assign_command_line(arguments, options_of(request), 0, log);
  require_option(!request.weights.empty(), "evaluate", "weights");
  if (request.data.empty() == request.questions.empty())
    throw_user_error("give --data or --questions, and not both; see llampi evaluate --help");
  const bool asks = request.data.empty();
  refuse_options_of_the_other(given, asks);
  if (request.asking.overwrite && request.answers.empty())
    throw_user_error("--overwrite requires --answers; remove it");
  std::error_code ignored;
  if (std::filesystem::equivalent(request.questions, request.answers, ignored))
    throw_user_error("--answers {} would replace the questions; name another file", request.answers);
  request.loss.compute = request.asking.compute = request.compute;
  request.asking.questions = request.questions;
  request.asking.answers = request.answers;
  return request;
}

void print_result(const train::Evaluation& e, bool json) {
  if (json) {
    // Numbers that are not finite become null.
    print(
        nlohmann::ordered_json{{"loss", e.loss}, {"perplexity", e.perplexity}, {"tokens", e.tokens}}.dump() +
        "\n");
  } else {
    print(fmt::format("loss {:.6f}, perplexity {:.4f}, over {}\n", e.loss, e.perplexity,
                      count(e.tokens, "label")));
  }
}

void print_result(const infer::Accuracy& a, bool json) {
  if (json) {
    const nlohmann::ordered_json text{
        {"accuracy", a.accuracy()}, {"questions", a.questions}, {"correct", a.correct}};
    print(text.dump() + "\n");
  } else {
    print(fmt::format("accuracy {:.1f} %: {} of {} answered right\n", 100 * a.accuracy(),
                      with_separators(a.correct), count(a.questions, "question")));
  }
}

}  // namespace

Manual evaluate_manual() { return manual_of<EvaluateRequest>(kEvaluateUsage); }

int evaluate_command(const Arguments& arguments) {
  return run_on_ranks([&](comm::World& world) {
    const bool speaks = world.rank() == 0;
    const Log log = console_log(speaks, stderr);
    EvaluateRequest r;
    comm::agree(world, [&] { r = parse_evaluation(arguments, log); });
    find_model(world, r.weights, r.adapter, log);
    r.loss.adapter = r.asking.text.adapter = r.adapter;
    const auto evaluate = [&] {
      if (r.questions.empty()) {
        const train::Evaluation result = train::evaluate(world, r.weights, r.data, r.loss, log);
        if (speaks) print_result(result, r.json);
        return;
      }
      comm::agree(world, [&] {
        if (r.asking.text.tokenizer.empty()) r.asking.text.folders = folders_of_run(r.weights, log);
      });
      const infer::Accuracy result = with_source("--questions ", r.questions, [&] {
        return with_source("--answers ", r.answers,
                           [&] { return infer::answer_questions(world, r.weights, r.asking, log); });
      });
      if (speaks) print_result(result, r.json);
    };
    with_source("--weights ", r.weights, [&] {
      with_source("--adapter ", r.adapter, [&] { with_source("--data ", r.data, evaluate); });
    });
    return kDone;
  });
}

}  // namespace llampi::cli
