// SPDX-License-Identifier: Apache-2.0
// Text generation: continuing a prompt, answering a user, and counting correct answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "llampi/comm/compute.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/infer/text_options.hpp"

namespace llampi::infer {

inline constexpr std::int64_t kMostTokensToGenerate = 1'000'000;

struct GenerateOptions {
  std::string prompt = {};
  bool chat = false;        ///< the prompt is what the user says, and the model answers
  std::string system = {};  ///< chat: what the system says before; empty: nothing
  /// Names or ids of tokens, separated by spaces, that end the text besides the tokenizer's own and the
  /// template's. A number is an id.
  std::string stop = {};
  std::int64_t max_tokens = 128;
  double temperature = 1.0;  ///< 0: the most likely token
  double top_p = 1.0;
  std::uint64_t seed = 0;
  TextOptions text = {};
  comm::DeviceOptions compute = {};
};

struct Generation {
  std::string completion;   ///< chat: without white space at its ends
  std::int64_t tokens = 0;  ///< of the completion
  bool stopped = false;     ///< by a token that ends the text, not by a limit
  std::string warning;  ///< where the model's limit ended it before that of the options; empty: it did not
};

/// Continues the prompt; `emit` gets each piece of the completion on rank 0 as it is made: bytes, which may
/// be parts of characters. Collective; the same on all ranks. @throws UserError; what `emit` throws is thrown on rank 0 alone, which must
/// then abort the job
Generation generate(comm::World& world, const std::filesystem::path& weights, const GenerateOptions& options,
                    const std::function<void(const std::string&)>& emit, const Log& log);

struct QuestionOptions {
  /// JSON lines, conversations as parse_conversation() reads them. The last message, the assistant's, is the
  /// correct answer to those before it.
  std::filesystem::path questions = {};
  /// Of an answer; 0: 16 more than the right one has, after which it cannot be right any more.
  std::int64_t max_tokens = 0;
  /// JSON lines to write: {"question", "right", "answer", "correct"} of each; empty: none.
  std::filesystem::path answers = {};
  bool overwrite = false;  ///< answers replace any file; if not, only a file of answers
  TextOptions text = {};
  comm::DeviceOptions compute = {};
};

struct Accuracy {
  std::int64_t questions = 0;
  std::int64_t correct = 0;  ///< the same text, but for white space at its ends
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(questions); }
};

/// Asks every question, each of a conversation of its own, and takes the most likely token always. Each rank
/// answers others. Collective; the same on all ranks. @throws UserError with file and line
Accuracy answer_questions(comm::World& world, const std::filesystem::path& weights,
                          const QuestionOptions& options, const Log& log);

}  // namespace llampi::infer
