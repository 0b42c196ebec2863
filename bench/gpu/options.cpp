// SPDX-License-Identifier: Apache-2.0
#include "gpu/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <initializer_list>
#include <iostream>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/fsdp/step_options.hpp"

namespace llampi::bench {
namespace {

namespace po = boost::program_options;

template <class T>
po::typed_value<T>* value(T& target) {
  return po::value<T>(&target)->default_value(target);
}

po::options_description describe(Options& o) {
  po::options_description all(
      "gpu_bench: speed of training steps of Llama-3-8B-shaped blocks on random tokens");
  auto add = all.add_options();
  add("help", "print this");
  add("device", value(o.device), "cuda or cpu");
  add("threads", value(o.threads), "of the CPU");
  add("share-gpu", value(o.share_gpu), "several ranks may have one GPU");
  add("hidden", value(o.hidden), "");
  add("ffn", value(o.feed_forward), "");
  add("heads", value(o.query_heads), "query heads");
  add("kv-heads", value(o.key_value_heads), "key/value heads");
  add("vocab", value(o.vocabulary), "");
  add("layers", value(o.layers), "0: as many as fit, 18 at most");
  add("headroom-gib", value(o.headroom_gib), "GPU memory that --layers 0 leaves free");
  add("seq-len", value(o.seq_len), "");
  add("tokens", value(o.tokens), "of a micro-batch of a rank");
  add("micro-batches", value(o.micro_batches), "of a step");
  add("micro-batch", value(o.micro_batch),
      "given, or auto: the tokens of the step in micro-batches as train.micro_batch = auto chooses");
  add("documents", value(o.documents), "of a sequence, which do not see each other; MFU counts whole ones");
  add("checkpointing", value(o.checkpointing), "as activation.checkpointing; auto: what fits");
  add("offload", value(o.offload),
      "as activation.offload: none (with --checkpointing auto, what fits) or residuals");
  add("labels", value(o.labels),
      "share of the tokens that have a label, above 0 and at most 1; MFU counts the head for these only");
  add("state", value(o.state), "master parameters and moments: bfloat16 or float32");
  add("gradient", value(o.gradient), "sharded gradients: float32 or bfloat16");
  add("product", value(o.product), "products of blocks, as fsdp.product_dtype: auto or fp8");
  add("attention", value(o.attention), "auto, cudnn, native");
  add("deterministic", value(o.deterministic), "");
  add("attention-workspace", value(o.attention_workspace), "MiB for deterministic attention; -1: what fits");
  add("logits-workspace", value(o.logits_workspace), "MiB for the logits of a chunk of rows; -1: what fits");
  add("graph", value(o.graph), "replay captured steps, but while operations are timed");
  add("tuning", value(o.tuning), "choose products by timing, before the steps: auto (as a run does), off");
  add("choices", value(o.choices), "file of the products chosen, for other configurations");
  add("steps", value(o.steps), "timed, at most");
  add("seconds", value(o.seconds), "that timed steps may take; at least 3 are timed");
  add("profile", value(o.profile), "time each operation by events, in steps of their own");
  add("products", value(o.products), "time the matrix products alone, and the device's limits");
  add("square", value(o.square), "side of the product that the limit is measured with");
  add("output", value(o.output), "file to which the result is added as a line of JSON");
  add("beside", value(o.beside),
      "add a row of llmq's log to the output, and do nothing else; --deterministic 0 says that it was not");
  add("table", value(o.table), "print such a file as tables, and do nothing else");
  return all;
}

/// Of an option that is given more than once the last counts: gpu_table.sh overrides what holds for all.
void drop_repeated(std::vector<po::option>& options) {
  for (std::size_t i = options.size(); i-- > 0;) {
    const std::string key = options[i].string_key;
    const auto end = options.begin() + static_cast<std::ptrdiff_t>(i);
    const auto same = [&](const po::option& earlier) { return earlier.string_key == key; };
    const auto kept = std::remove_if(options.begin(), end, same);
    i -= static_cast<std::size_t>(end - kept);
    options.erase(kept, end);
  }
}

void require_one_of(const char* name, const std::string& word, std::initializer_list<const char*> words) {
  if (std::find(words.begin(), words.end(), word) != words.end()) return;
  throw_user_error("--{} {}: use {}", name, word, fmt::join(words, ", "));
}

void check(const Options& o) {
  require_one_of("device", o.device, {"cuda", "cpu"});
  require_one_of("offload", o.offload, {"none", "residuals"});
  if (!(o.labels > 0 && o.labels <= 1))
    throw_user_error("--labels {}: use a number above 0, at most 1", o.labels);
  if (o.checkpointing != "auto" && !fsdp::parse_checkpointing(o.checkpointing))
    throw_user_error("--checkpointing {}: use what activation.checkpointing takes", o.checkpointing);
  require_one_of("micro-batch", o.micro_batch, {"given", "auto"});
  require_one_of("state", o.state, {"bfloat16", "float32"});
  require_one_of("gradient", o.gradient, {"float32", "bfloat16"});
  require_one_of("product", o.product, {"auto", "fp8"});
  require_one_of("tuning", o.tuning, {"auto", "off"});
  require_one_of("attention", o.attention, {"auto", "cudnn", "native"});
  if (std::min({o.hidden, o.feed_forward, o.query_heads, o.key_value_heads, o.vocabulary, o.seq_len, o.tokens,
                o.documents, o.square, std::int64_t{o.micro_batches}, std::int64_t{o.steps},
                std::int64_t{o.threads}}) < 1 ||
      o.layers < 0)
    throw_user_error("sizes and numbers must be at least 1");
  if (o.tokens % o.seq_len != 0)
    throw_user_error("--tokens {} is not a multiple of --seq-len {}", o.tokens, o.seq_len);
  if (o.seq_len % o.documents != 0)
    throw_user_error("--seq-len {} is not a multiple of --documents {}", o.seq_len, o.documents);
  if (o.hidden % o.query_heads != 0 || o.query_heads % o.key_value_heads != 0)
    throw_user_error("--hidden must be a multiple of --heads, and that of --kv-heads");
  if (o.device == "cpu" && o.layers == 0)
    throw_user_error("on a CPU say how many --layers: 8B-shaped ones are too slow there");
}

}  // namespace

bool parse(int argc, char** argv, Options& options) {
  const auto description = describe(options);
  po::variables_map given;
  try {
    auto parsed = po::parse_command_line(argc, argv, description);
    drop_repeated(parsed.options);
    po::store(parsed, given);
    po::notify(given);
  } catch (const po::error& error) {
    throw_user_error("{}; gpu_bench --help lists the options", error.what());
  }
  if (given.contains("help")) {
    std::cout << description;
    return false;
  }
  check(options);
  return true;
}

}  // namespace llampi::bench
