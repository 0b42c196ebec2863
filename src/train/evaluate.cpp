// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/first_failure.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/exact_sum.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/text.hpp"
#include "llampi/infer/session.hpp"
#include "llampi/train/run_text.hpp"
#include "train/inputs.hpp"
#include "train/tokenizer_check.hpp"

namespace llampi::train {
namespace {

/// What is known of the run that trained these weights; nothing of a Hugging Face folder.
checkpoint::CheckpointSummary summary_of(const std::filesystem::path& weights) {
  if (checkpoint::identify(weights) != checkpoint::FileKind::checkpoint) return {};
  return checkpoint::read_checkpoint_summary(weights);
}

/// Of the rows that the data were packed into, or else of the run that trained these weights.
std::int64_t seq_len_of(const data::TokenFile& data, const checkpoint::CheckpointSummary& trained,
                        const std::filesystem::path& weights) {
  const std::int64_t seq_len = data.row_tokens() > 0 ? data.row_tokens() : trained.state.seq_len;
  if (seq_len < 1)
    throw_user_error("neither {} nor {} says with which sequence length to evaluate; give --seq-len",
                     weights.string(), data.path().string());
  return seq_len;
}

}  // namespace

std::optional<Evaluation> evaluate_file(comm::World& world, fsdp::Engine& engine, const data::TokenFile& file,
                                        const data::BatchOptions& options,
                                        const std::function<bool()>& should_abort) {
  const std::int64_t samples = file.samples(options.seq_len);
  const std::int64_t per_round = options.micro_batch * world.size();
  ExactSum losses;
  std::int64_t valid = 0;
  for (std::int64_t round = 0; round * per_round < samples; ++round) {
    if (should_abort && should_abort()) return std::nullopt;
    std::vector<std::int64_t> mine(options.micro_batch, -1);
    for (std::int64_t i = 0; i < options.micro_batch; ++i) {
      const std::int64_t sample = round * per_round + world.rank() * options.micro_batch + i;
      if (sample < samples) mine[i] = sample;
    }
    device::HostBatch batch;
    comm::FirstFailure failure;
    engine.record().act("reading the data");
    failure.of([&] { batch = data::make_batch(file, options, mine); });
    {
      const health::FlightScope scope(engine.record(), {"agreement on the data"});
      failure.agree(world);
    }
    losses.add(engine.evaluate(batch));
    valid += batch.valid_labels;
  }
  world.sum(losses.words());
  valid = comm::sum_over_ranks(world, valid);
  Evaluation result{.loss = std::numeric_limits<double>::quiet_NaN(), .tokens = valid};
  if (valid > 0) result.loss = losses.value() / static_cast<double>(valid);
  result.perplexity = std::exp(result.loss);
  return result;
}

Evaluation over_all(std::span<const Evaluation> files) {
  if (files.size() == 1) return files.front();
  Evaluation all{.loss = std::numeric_limits<double>::quiet_NaN()};
  double sum = 0;
  for (const Evaluation& file : files) {
    if (file.tokens == 0) continue;  // it has no loss
    sum += file.loss * static_cast<double>(file.tokens);
    all.tokens += file.tokens;
  }
  if (all.tokens > 0) all.loss = sum / static_cast<double>(all.tokens);
  all.perplexity = std::exp(all.loss);
  return all;
}

Evaluation evaluate(comm::World& world, const std::filesystem::path& weights,
                    const std::filesystem::path& data, EvaluateOptions o, const Log& log) {
  std::unique_ptr<data::TokenFile> file;
  bool document_mask = true;
  comm::agree(world, [&] {
    file = std::make_unique<data::TokenFile>(data);
    const model::LlamaConfig model = checkpoint::config_of_weights(weights);
    const auto& with = std::filesystem::is_regular_file(o.adapter) ? o.adapter : weights;
    const auto trained = summary_of(with);
    if (o.seq_len == 0) o.seq_len = seq_len_of(*file, trained, with);
    document_mask = read_run_text(trained.texts.run_config).value("data.document_mask") != "false";
    if (!document_mask) log.info("data.document_mask = false, as {} was trained", with.string());
    check_vocabulary(*file, model, weights.string());
    check_rows(*file, o.seq_len, "--seq-len");
    if (file->samples(o.seq_len) < 1) {
      throw_user_error("{} has {}, too few for one sample of {} + 1; use a smaller --seq-len", data.string(),
                       count(file->tokens(), "token"), o.seq_len);
    }
    o.micro_batch = std::min(o.micro_batch, ceil_div(file->samples(o.seq_len), world.size()));
  });
  comm::on_rank_0(world, [&] { check_tokenizer(*file, weights, log); });
  const auto session =
      infer::open_for_inference(world, weights, {o.micro_batch, o.seq_len}, o.compute, log, o.adapter);
  note_incomplete_sample(*file, o.seq_len, log);
  const data::BatchOptions options{.seq_len = o.seq_len,
                                   .micro_batch = o.micro_batch,
                                   .document_mask = document_mask,
                                   .vocabulary = session.config.vocab_size};
  const Evaluation result = *evaluate_file(world, *session.engine, *file, options);
  if (result.tokens == 0) {
    log.warning("{} has no valid labels, so it has no loss", data.string());
  } else if (!std::isfinite(result.loss)) {
    infer::refuse_logits("there is no loss");
  }
  return result;
}

}  // namespace llampi::train
