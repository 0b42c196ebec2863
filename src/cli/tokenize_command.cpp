// llampi tokenize
#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/tokenize.hpp"
#include "llampi/data/tokenizer.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kUsage =
    "Usage: llampi tokenize --tokenizer bytes|FILE|FOLDER --output FILE INPUT...\n"
    "       llampi tokenize --tokenizer bytes|FILE|FOLDER --print|--decode\n\n"
    "Writes a token file; each input becomes one document of it. Or prints the ids of each line of standard\n"
    "input, one line each, or the other way round.\n";

struct Request {
  std::string tokenizer;
  std::string format = "text";
  std::string output;
  std::vector<std::string> inputs;
  bool print = false;
  bool decode = false;
  bool json = false;
};

std::vector<Option> options_of(Request& r) {
  return {
      {"tokenizer",
       &r.tokenizer,
       "tokenizer.json, tokenizer.model, the folder of one, or bytes: a token is a byte",
       {.name = "NAME"}},
      {"format", &r.format, "of the inputs", {.one_of = {"text", "jsonl", "chat"}, .built = {"text"}}},
      {"output", &r.output, "token file to write", {.name = "FILE"}},
      {"print", &r.print, "ids of each line of standard input", {}, true},
      {"decode", &r.decode, "text of each line of ids of standard input", {}, true},
      {"json", &r.json, "print what was written as one JSON object: documents, tokens, bytes", {}, true},
  };
}

Request parse(const Arguments& arguments) {
  Request request;
  request.inputs = assign_command_line(arguments, options_of(request), arguments.size());
  require_option(!request.tokenizer.empty(), "tokenize", "tokenizer");
  if (request.print || request.decode) {
    if (!request.inputs.empty() || !request.output.empty()) {
      throw_user_error("tokenize --{} reads standard input and writes standard output; leave out {}",
                       request.decode ? "decode" : "print",
                       request.output.empty() ? request.inputs[0] : "--output");
    }
    return request;
  }
  require_option(!request.output.empty(), "tokenize", "output");
  if (request.inputs.empty())
    throw_user_error("tokenize needs at least one input file; see llampi tokenize --help");
  return request;
}

void print_ids(const Tokenizer& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    print(fmt::format("{}\n", fmt::join(tokenizer.encode(line), " ")));
  }
}

std::vector<std::int32_t> parse_ids(const std::string& line, std::int64_t number) {
  std::vector<std::int32_t> ids;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const char* end = word.data() + word.size();
    const auto [stopped, error] = std::from_chars(word.data(), end, ids.emplace_back());
    if (error != std::errc() || stopped != end) {
      throw_user_error("line {} of standard input holds \"{}\", which is not a token id", number, word);
    }
  }
  return ids;
}

void print_text(const Tokenizer& tokenizer) {
  std::string line;
  for (std::int64_t number = 1; std::getline(std::cin, line); ++number) {
    print(tokenizer.decode(parse_ids(line, number)) + "\n");
  }
}

void write_file(const Tokenizer& tokenizer, const Request& r) {
  const std::vector<std::filesystem::path> inputs(r.inputs.begin(), r.inputs.end());
  const auto done = tokenize_text(tokenizer, inputs, r.output, console_log(true, stderr));
  if (r.json) {
    const nlohmann::ordered_json json{
        {"documents", done.documents}, {"tokens", done.tokens}, {"bytes", done.bytes}};
    print(json.dump() + "\n");
  } else {
    print(fmt::format("{}: {} tokens in {} documents, from {} of text\n", r.output, done.tokens,
                      done.documents, format_bytes(done.bytes)));
  }
}

}  // namespace

int tokenize_command(const Arguments& arguments) {
  Request request;
  if (asks_for_help(arguments)) {
    print(kUsage + options_help(options_of(request)));
    return kDone;
  }
  request = parse(arguments);
  const auto tokenizer = make_tokenizer(request.tokenizer);
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
