// SPDX-License-Identifier: Apache-2.0
#include "cli/tokenize_report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "llampi/core/json_text.hpp"
#include "llampi/core/text.hpp"

namespace llampi::cli {
namespace {

using Json = nlohmann::ordered_json;

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// Part of the rows that is no padding.
double fill(const data::OutputStatistics& output) {
  return ratio(output.tokens, output.tokens + output.padding);
}

template <class... Args>
std::string row(const char* name, fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format("  {:<18} {}\n", name, fmt::format(format, std::forward<Args>(args)...));
}

/// Of files without text, or lines of JSON.
std::string files_or_lines(std::int64_t number) {
  return fmt::format("{} {}", with_separators(number), number == 1 ? "file or line" : "files or lines");
}

std::string describe(const std::string& file, const data::OutputStatistics& output,
                     const data::TokenizeOptions& options) {
  std::string text =
      fmt::format("{}: {} in {}\n", file, count(output.tokens, "token"), count(output.documents, "document"));
  text += row("tokens with loss", "{} ({:.1f} %)", with_separators(output.trained),
              100 * ratio(output.trained, output.tokens));
  text += row("longest", "{}", count(output.longest, "token"));
  if (options.format != data::InputFormat::chat) return text;
  text += row("sequences", "{} of {}, {:.2f} % full", with_separators(output.rows),
              count(options.seq_len, "token"), 100 * fill(output));
  const auto& used = options.chat_template;
  text += row("template", "{}{}", used.name, used.date.empty() ? "" : ", date " + used.date);
  if (output.cut > 0) text += row("cut", "{} longer than that", count(output.cut, "conversation"));
  return text;
}

/// Which tokens a document begins and ends with; of a tokenizer without such tokens nothing.
std::string describe_documents(const tokenizer::Tokenizer& tokenizer, const data::TokenizeOptions& options) {
  const auto name = [&](bool asked, std::optional<std::int32_t> id) {
    return asked && id ? tokenizer.decode({&*id, 1}) + " " : std::string();
  };
  const std::string begin = name(options.begin, tokenizer.begin()), end = name(options.end, tokenizer.end());
  if (begin.empty() && end.empty()) return "";
  return row("each document", "{}... {}", begin, end);
}

Json json_of(const data::OutputStatistics& output, const data::TokenizeOptions& options) {
  Json json{{"documents", output.documents}, {"tokens", output.tokens}};
  json["loss_tokens"] = output.trained;
  json["trained_tokens"] = output.trained;  // its name in earlier versions
  json["longest"] = output.longest;
  if (options.format != data::InputFormat::chat) return json;
  json["sequences"] = output.rows;
  json["seq_len"] = options.seq_len;
  json["fill"] = fill(output);
  json["cut"] = output.cut;
  json["template"] = options.chat_template.name;
  return json;
}

}  // namespace

std::string tokenize_table(const tokenizer::Tokenizer& tokenizer, const data::TokenizeOptions& options,
                           const data::TokenizeStatistics& done, double seconds) {
  std::string text = describe(options.output.string(), done.output, options);
  const bool has_held_out = options.held_out > 0;
  if (has_held_out) text += describe(options.held_out_output.string(), done.held_out, options);
  if (options.format != data::InputFormat::chat) text += describe_documents(tokenizer, options);
  const auto tokens = done.output.tokens + done.held_out.tokens;
  text += fmt::format("from {} of text in {}\n", format_bytes(done.bytes), count(done.files, "file"));
  text += row("tokens per byte", "{:.3f}", ratio(tokens, done.bytes));
  if (done.empty > 0) text += row("without text", "{}", files_or_lines(done.empty));
  if (done.ill_formed > 0)
    text += row("not UTF-8", "{} in {}", count(done.ill_formed, "place"),
                count(done.ill_formed_documents, "document"));
  if (done.skipped > 0) text += row("skipped", "{} that could not be used", files_or_lines(done.skipped));
  if (done.dropped > 0)
    text += row("dropped", "{} {} too long", count(done.dropped, "conversation"),
                done.dropped == 1 ? "was" : "were");
  text +=
      row("time", "{:.1f} s, {:.1f} MB/s", seconds, static_cast<double>(done.input_bytes) / 1e6 / seconds);
  return text;
}

std::string tokenize_json(const data::TokenizeOptions& options, const data::TokenizeStatistics& done,
                          double seconds) {
  Json json = json_of(done.output, options);
  json["bytes"] = done.bytes;
  json["files"] = done.files;
  json["empty"] = done.empty;
  json["ill_formed"] = done.ill_formed;
  json["ill_formed_documents"] = done.ill_formed_documents;
  json["skipped"] = done.skipped;
  json["dropped"] = done.dropped;
  if (options.held_out > 0) json["held_out"] = json_of(done.held_out, options);
  json["seconds"] = seconds;
  return json_text(json);
}

}  // namespace llampi::cli
