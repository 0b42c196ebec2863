// SPDX-License-Identifier: Apache-2.0
// llampi tokenize
#include <fmt/format.h>

#include <iostream>
#include <sstream>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/launch.hpp"
#include "cli/progress.hpp"
#include "cli/text_options.hpp"
#include "cli/tokenize_report.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/tokenize.hpp"
#include "llampi/tokenizer/chat.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"

namespace llampi::cli {
namespace {

constexpr Range kRowTokens{.low = 2, .high = 1 << 24};
constexpr Range kPart{.low = 0, .high = 1, .includes_high = false};

constexpr const char* kTokenizeUsage =
    R"(Usage: llampi tokenize --tokenizer bytes|FILE|FOLDER --output FILE INPUT...
       llampi tokenize --tokenizer FILE|FOLDER --format chat --seq-len N --output FILE INPUT...
       llampi tokenize --tokenizer bytes|FILE|FOLDER --print|--decode

Writes a token file.
--format text: each input file is one document.
--format jsonl: each line is one document, {"text": "..."}.
--format chat: each line is a conversation, {"messages": [{"role": "user", "content": "..."}, ...]} or
{"prompt": "...", "completion": "..."}. The chat template is applied, the loss is computed on the
assistant's tokens only, and conversations are packed into sequences of N tokens without splitting any
that fits into one.
Inputs that gzip or zstd has compressed are unpacked as they are read.
An existing output is replaced only if it is a llampi token file.
With --print, prints the token ids of each line of standard input; with --decode, the text of each
line of token ids.
)";

struct TokenizeRequest {
  std::string tokenizer;
  std::string output, held_out_output;
  std::string chat_template = "auto", template_date = "auto";
  data::TokenizeOptions options;
  bool print = false;
  bool decode = false;
  bool json = false;

  bool is_chat() const { return options.format == data::InputFormat::chat; }
};

std::vector<Option> options_of(TokenizeRequest& r) {
  auto& o = r.options;
  return {
      {"tokenizer",
       &r.tokenizer,
       "tokenizer.json, tokenizer.model, the folder of one, or bytes (one token per byte)",
       {.name = "bytes|FILE|FOLDER"}},
      {"format", one_of(o.format), "format of the input files"},
      {"output", &r.output, "token file to write; its folder is created if missing", {.name = "FILE"}},
      {"overwrite",
       &o.overwrite,
       "allow the outputs to replace files that are not llampi token files",
       {},
       true},
      {"text-field", &o.text_field, "--format jsonl: name of the text field"},
      {"bos", &o.begin,
       "--format text, jsonl: begin each document with the BOS token, if the tokenizer has one"},
      {"eos", &o.end, "--format text, jsonl: end each document with the EOS token, if the tokenizer has one"},
      {"seq-len",
       &o.seq_len,
       "--format chat: tokens per packed sequence; the data.seq_len to train with",
       {.range = kRowTokens}},
      template_option(r.chat_template, "--format chat: "),
      template_date_option(r.template_date, "--format chat: "),
      {"loss", one_of(o.loss), "--format chat: tokens that the loss is computed on"},
      {"too-long", one_of(o.too_long),
       "--format chat: what to do with conversations longer than --seq-len. cut: continue them in further sequences; drop: leave them out and "
       "count them; refuse: end with an error"},
      {"held-out",
       &o.held_out,
       "fraction of documents to hold out for evaluation (0.01 = 1 %)",
       {.range = kPart}},
      {"held-out-output", &r.held_out_output, "token file for the held-out documents", {.name = "FILE"}},
      {"seed", &o.seed, "random seed for choosing the held-out documents"},
      {"on-error", one_of(o.on_error),
       "what to do with unusable lines and files that are not text. skip: report them and continue"},
      {"threads", &o.threads, "number of threads; 0: one per core", {.range = kThreads}},
      {"print", &r.print, "print the token ids of each line of standard input", {}, true},
      {"decode", &r.decode, "print the text of each line of token ids of standard input", {}, true},
      {"json", &r.json, "print a JSON object with what was written: documents, tokens, bytes, ...", {}, true},
  };
}

/// Options that would change nothing.
void refuse_unused(const TokenizeRequest& r, const CommandLine& given) {
  constexpr const char* kOnlyChat = "only conversations have it";
  constexpr const char* kInTemplate = "the chat template says which tokens";
  struct Unused {
    const char* option;
    bool is_unused;
    const char* reason;
  };
  for (const auto& [option, is_unused, reason] :
       {Unused{"seq-len", !r.is_chat(), "texts are cut into sequences when they are read"},
        Unused{"template", !r.is_chat(), kOnlyChat}, Unused{"template-date", !r.is_chat(), kOnlyChat},
        Unused{"loss", !r.is_chat(), kOnlyChat}, Unused{"too-long", !r.is_chat(), kOnlyChat},
        Unused{"bos", r.is_chat(), kInTemplate}, Unused{"eos", r.is_chat(), kInTemplate},
        Unused{"text-field", r.options.format != data::InputFormat::jsonl, "only JSON lines have it"}}) {
    if (is_unused && given.has(option))
      throw_user_error("--{} cannot be used with --format {}: {}; remove it", option,
                       word_of(r.options.format), reason);
  }
}

void check(const TokenizeRequest& r, const CommandLine& given) {
  const auto& o = r.options;
  require_option(!r.output.empty(), "tokenize", "output");
  if (o.inputs.empty())
    throw_user_error("tokenize needs at least one input file; see llampi tokenize --help");
  require_option(!r.is_chat() || o.seq_len > 0, "tokenize --format chat", "seq-len");
  refuse_unused(r, given);
  if (given.has("seed") && o.held_out == 0) throw_user_error("--seed requires --held-out; remove it");
  if ((o.held_out > 0) != !r.held_out_output.empty()) {
    throw_user_error(
        "tokenize needs both --held-out and --held-out-output for a held-out part; {} is missing",
        o.held_out > 0 ? "--held-out-output" : "--held-out");
  }
}

/// --print and --decode: from standard input to standard output.
void check_conversion(const TokenizeRequest& r, const CommandLine& given) {
  if (r.print && r.decode) throw_user_error("--print and --decode cannot be combined");
  const std::string mode = r.decode ? "decode" : "print";
  std::vector<std::string> unused = given.positional;
  for (const auto& [key, value, where] : given.settings) {
    if (key != mode && key != "tokenizer") unused.push_back("--" + key);
  }
  if (!unused.empty()) {
    throw_user_error(
        "tokenize --{} reads standard input, writes standard output and needs only --tokenizer; remove {}",
        mode, unused.front());
  }
}

TokenizeRequest parse_tokenization(const Arguments& arguments) {
  TokenizeRequest request;
  const CommandLine given =
      assign_command_line(arguments, options_of(request), arguments.size(), console_log(true, stderr));
  if (!given.has("format")) request.options.json_as_text = data::JsonAsText::refuse;
  require_option(!request.tokenizer.empty(), "tokenize", "tokenizer");
  if (request.print || request.decode) {
    check_conversion(request, given);
    return request;
  }
  request.options.inputs.assign(given.positional.begin(), given.positional.end());
  check(request, given);
  return request;
}

void print_ids(const tokenizer::Tokenizer& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    print(fmt::format("{}\n", fmt::join(tokenizer.encode(line), " ")));
  }
}

std::vector<std::int32_t> parse_ids(const std::string& line, std::int64_t number) {
  std::vector<std::int32_t> ids;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto id = parse_number<std::int32_t>(word);
    if (!id)
      throw_user_error("line {} of standard input holds \"{}\", which is not a token id", number, word);
    ids.push_back(*id);
  }
  return ids;
}

void print_text(const tokenizer::Tokenizer& tokenizer) {
  std::string line;
  for (std::int64_t number = 1; std::getline(std::cin, line); ++number) {
    const auto ids = parse_ids(line, number);
    try {
      print(tokenizer.decode(ids) + "\n");
    } catch (const UserError& error) {
      throw_user_error("line {} of standard input: {}", number, error.what());
    }
  }
}

data::TokenizeOptions resolve(const TokenizeRequest& r, const tokenizer::Tokenizer& tokenizer) {
  data::TokenizeOptions options = r.options;
  options.output = r.output;
  options.held_out_output = r.held_out_output;
  if (r.is_chat())
    options.chat_template =
        tokenizer::choose_template(tokenizer, {.name = r.chat_template, .date = r.template_date});
  return options;
}

/// 0 if it cannot be told, as of pipes.
std::int64_t total_bytes(const std::vector<std::filesystem::path>& files) {
  std::int64_t total = 0;
  for (const auto& file : files) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(file, error);
    if (error) return 0;
    total += static_cast<std::int64_t>(bytes);
  }
  return total;
}

void write_file(const tokenizer::Tokenizer& tokenizer, const TokenizeRequest& r) {
  const auto options = resolve(r, tokenizer);
  Progress progress(total_bytes(options.inputs));
  const Log console = console_log(true, stderr);
  const Log log([&](const std::string& line) {
    progress.clear();
    console.info("{}", line);
  });
  if (!r.is_chat() && options.end && !tokenizer.end() && !tokenizer.takes_any_bytes()) {
    console.warning(
        "the files of {} name no end-of-sequence token, so documents are written without one, and a model does not learn to "
        "end: tokenizer_config.json belongs next to tokenizer.json (--eos=false if that is meant)",
        r.tokenizer);
  }
  const auto done =
      data::tokenize(tokenizer, options, log, [&](std::int64_t bytes) { progress.show(bytes); });
  progress.clear();
  const double seconds = progress.seconds();
  const auto warn_if_useless = [&](const std::filesystem::path& file, const data::OutputStatistics& output) {
    if (output.documents > 0 && output.trained == 0)
      console.warning("no token of {} has a loss: training on it changes nothing", file.string());
  };
  warn_if_useless(options.output, done.output);
  warn_if_useless(options.held_out_output, done.held_out);
  print(r.json ? tokenize_json(options, done, seconds) + "\n"
               : tokenize_table(tokenizer, options, done, seconds));
}

}  // namespace

Manual tokenize_manual() {
  Manual manual = manual_of<TokenizeRequest>(kTokenizeUsage);
  manual.takes_files = true;
  return manual;
}

int tokenize_command(const Arguments& arguments) {
  if (!works_alone("tokenize", environment_variable)) return kDone;
  TokenizeRequest request = parse_tokenization(arguments);
  const auto tokenizer = tokenizer::make_tokenizer(request.tokenizer);
  if (request.decode) {
    print_text(*tokenizer);
  } else if (request.print) {
    print_ids(*tokenizer);
  } else {
    write_file(*tokenizer, request);
  }
  return kDone;
}

}  // namespace llampi::cli
