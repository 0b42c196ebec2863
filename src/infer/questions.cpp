// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "infer/continuation.hpp"
#include "infer/sampling.hpp"
#include "infer/text_model.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/json_lines.hpp"
#include "llampi/infer/generate.hpp"
#include "llampi/infer/session.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::infer {
namespace {

constexpr std::int64_t kMoreTokens = 16;  ///< than the right answer has
constexpr std::chrono::seconds kReportEvery{10};

struct Question {
  std::string text;   ///< what the user says last
  std::string right;  ///< answer
  Beginning beginning;
  bool has_room = true;  ///< for the right answer and the token that ends it
};

std::string where(const std::filesystem::path& file, std::int64_t line) {
  return fmt::format("{}, line {}", file.string(), line);
}

/// @param line of the file, which becomes the conversation up to the answer, and the answer
Question make_question(const TextModel& model, const std::string& line, const std::string& place,
                       std::int64_t max_tokens) {
  Question question;
  std::string whole;  // the answer with its thoughts, if the file has them; their marks are among kMoreTokens
  try {
    tokenizer::Conversation conversation = data::parse_conversation(line);
    if (conversation.back().role != tokenizer::ChatRole::assistant)
      throw_user_error("the last message must be the assistant's: the expected answer");
    const auto& answer = conversation.back();
    question.right = tokenizer::strip(tokenizer::without_thoughts(model.chat_template, answer.content));
    if (question.right.empty()) throw_user_error("the expected answer is empty without its thoughts");
    whole = answer.reasoning.value_or("") + answer.content;
    conversation.pop_back();
    if (conversation.empty()) throw_user_error("there is no message before the answer");
    question.text = conversation.back().content;
    question.beginning.tokens = model.encode(conversation);
  } catch (const UserError& error) {
    throw_user_error("{}: {}", place, error.what());
  }
  const auto tokens_in = [&](const std::string& text) {
    return std::ssize(model.tokenizer->encode(text, tokenizer::SpecialText::text));
  };
  const auto wanted = max_tokens > 0 ? max_tokens : tokens_in(whole) + kMoreTokens;
  question.beginning.most = model.room(question.beginning.tokens, wanted, place);
  question.has_room = question.beginning.most > tokens_in(question.right);
  return question;
}

std::vector<Question> read_questions(const TextModel& model, const QuestionOptions& options) {
  std::vector<Question> questions;
  std::int64_t number = 0;
  for (const auto& line : lines_of(io::read_whole(options.questions))) {
    ++number;
    if (tokenizer::strip(line).empty()) continue;
    questions.push_back(make_question(model, line, where(options.questions, number), options.max_tokens));
  }
  if (questions.empty()) throw_user_error("{} has no questions", options.questions.string());
  return questions;
}

void warn_of_answers_without_room(const std::vector<Question>& questions, const TextModel& model,
                                  std::int64_t max_tokens, const Log& log) {
  const auto without = std::ranges::count(questions, false, &Question::has_room);
  if (without == 0) return;
  log.warning("{} {} not fit into {}the model's context of {}, and {} as wrong",
              count(without, "expected answer"), without == 1 ? "does" : "do",
              max_tokens > 0 ? fmt::format("--max-tokens {} or ", max_tokens) : "",
              count(model.config.max_position_embeddings, "token"), without == 1 ? "counts" : "count");
}

/// By its first line, that answer_line() made it.
bool is_file_of_answers(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return false;
  const auto json = nlohmann::json::parse(line, nullptr, false);
  return json.is_object() && json.size() == 4 && json.contains("question") && json.contains("right") &&
         json.contains("answer") && json.contains("correct");
}

/// The answers as they come; on rank 0, if they are asked for. Whether they can be written shows before the
/// model is read; what was under that name stays until the first answers are there.
class AnswersFile {
 public:
  AnswersFile(comm::World& world, const QuestionOptions& options, const Log& log)
      : world_(world),
        output_{io::follow_links(options.answers), "a file of answers", is_file_of_answers,
                options.overwrite} {
    if (output_.path.empty()) return;
    comm::on_rank_0(world_, [&] {
      output_.check();
      io::clear_leftovers(output_.path, log);
      temporary_.emplace(io::temporary_beside(output_.path));
      file_ = io::PosixFile::create(temporary_->path());
    });
  }
  /// Lines of all ranks, in their order. Collective.
  void append(const std::string& line) {
    if (output_.path.empty()) return;
    std::string lines;
    for (const auto& one : world_.all_gather(line)) lines += one;
    comm::on_rank_0(world_, [&] {
      file_.write_at(bytes_, std::as_bytes(std::span(lines)));
      if (bytes_ == 0) {
        file_.sync();
        output_.place(temporary_->path());
      }
      bytes_ += std::ssize(lines);
    });
  }
  /// All of it is on the disk. Collective.
  void finish() {
    if (!output_.path.empty()) comm::on_rank_0(world_, [&] { file_.sync(); });
  }

 private:
  comm::World& world_;
  const io::OutputFile output_;
  std::optional<io::TemporaryFile> temporary_;
  io::PosixFile file_;
  std::int64_t bytes_ = 0;
};

std::string answer_line(const Question& question, const std::string& answer, bool correct) {
  const nlohmann::ordered_json json{
      {"question", question.text}, {"right", question.right}, {"answer", answer}, {"correct", correct}};
  return json_text(json) + "\n";
}

}  // namespace

Accuracy answer_questions(comm::World& world, const std::filesystem::path& weights,
                          const QuestionOptions& options, const Log& log) {
  AnswersFile answers(world, options, log);
  TextModel model;
  std::vector<Question> questions;
  std::int64_t longest = 0;
  const std::string today = world.broadcast(tokenizer::date_of_today(), 0);
  comm::agree(world, [&] {
    model = TextModel::open(weights, options.text, true, today);
    questions = read_questions(model, options);
    for (const auto& question : questions)
      longest = std::max(longest, std::ssize(question.beginning.tokens) + question.beginning.most);
  });
  warn_of_answers_without_room(questions, model, options.max_tokens, log);
  const auto session = open_for_inference(world, weights, generation_shape(longest), options.compute, log,
                                          options.text.adapter);
  const auto stop = model.stop_tokens(true);
  const auto choose = [&](std::vector<double>& logits, std::int64_t) {
    model.forbid_nameless(logits);
    return draw(logits, 0, 1, 0);
  };

  Accuracy result{.questions = std::ssize(questions)};
  std::int64_t in_thoughts = 0;  // answers that reached the limit of tokens there
  auto reported = std::chrono::steady_clock::now();
  for (std::int64_t first = 0; first < result.questions; first += world.size()) {
    const auto mine = static_cast<std::size_t>(first + world.rank());
    const bool has_one = mine < questions.size();
    const auto made = continue_sequence(world, *session.engine,
                                        has_one ? questions[mine].beginning : Beginning{}, stop, choose);
    std::string line;
    std::array<std::int64_t, 2> counted{};  // correct, cut off in thoughts
    auto& [correct, cut_off] = counted;
    if (has_one) {
      const std::string text = model.tokenizer->decode(made.tokens);
      const auto answer = tokenizer::strip(tokenizer::without_thoughts(model.chat_template, text));
      correct = made.stopped && answer == questions[mine].right ? 1 : 0;
      cut_off = !made.stopped && tokenizer::ends_in_thoughts(model.chat_template, text) ? 1 : 0;
      line = answer_line(questions[mine], std::string(tokenizer::strip(text)), correct != 0);
    }
    world.sum(counted);
    result.correct += correct;
    in_thoughts += cut_off;
    answers.append(line);
    if (const auto now = std::chrono::steady_clock::now(); now - reported >= kReportEvery) {
      const auto done = std::min(first + world.size(), result.questions);
      log.info("{} of {} questions, {} right", done, result.questions, result.correct);
      reported = now;
    }
  }
  answers.finish();
  if (in_thoughts > 0) {
    log.warning(
        "{} reached the limit of tokens while the model was still thinking, and {} wrong; raise --max-tokens, as far as the model's context allows",
        count(in_thoughts, "answer"), in_thoughts == 1 ? "counts as" : "count as");
  }
  return result;
}

}  // namespace llampi::infer
