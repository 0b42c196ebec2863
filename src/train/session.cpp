#include "train/session.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>

#include "comm/on_rank_0.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "train/inputs.hpp"
#include "train/tokenizer_check.hpp"

namespace llampi {

namespace {

/// OMP_NUM_THREADS, of which the first number counts; 0 if it is not set.
int omp_num_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  int threads = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), threads);
  return std::max(0, threads);
}

cpu_set_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) CPU_SET(0, &cores);
  return cores;
}

/// Of the rows that the data were packed into, or else of the run that trained these weights.
std::int64_t seq_len_of(const TokenFile& data, const std::filesystem::path& weights) {
  std::int64_t seq_len = data.row_tokens();
  if (seq_len > 0) return seq_len;
  if (identify(weights) == FileKind::checkpoint) seq_len = read_checkpoint_summary(weights).state.seq_len;
  if (seq_len < 1)
    throw_user_error("neither {} nor {} says with which sequence length to evaluate; give --seq-len",
                     weights.string(), data.path().string());
  return seq_len;
}

}  // namespace

int threads_per_rank(int asked, int sharing) {
  if (asked == 0) asked = omp_num_threads();
  if (asked > 0) return asked;
  const cpu_set_t cores = usable_cores();
  return std::max(1, CPU_COUNT(&cores) / sharing);
}

int threads_per_rank(World& world, int asked) {
  // Ranks that were bound to cores of their own have different sets; unbound ones share one.
  const cpu_set_t cores = usable_cores();
  const std::string mine =
      world.topology().host + std::string(reinterpret_cast<const char*>(&cores), sizeof(cores));
  const auto all = world.all_gather(mine);
  return threads_per_rank(asked, static_cast<int>(std::count(all.begin(), all.end(), mine)));
}

std::vector<TensorInfo> tensor_infos(const Engine& engine) {
  const auto& groups = engine.options().groups;
  std::vector<TensorInfo> infos;
  for (const auto& parameter : engine.model().parameters()) {
    const bool frozen = !groups.empty() && groups[infos.size()].frozen;
    infos.push_back({parameter.name, parameter.shape, !frozen});
  }
  return infos;
}

std::vector<TensorPiece> tensor_pieces(const std::vector<StatePiece>& pieces) {
  std::vector<TensorPiece> result;
  for (const auto& piece : pieces)
    result.push_back({piece.parameter, piece.begin, piece.master, piece.exp_avg, piece.exp_avg_sq});
  return result;
}

std::string unit_of(const Engine& engine, int parameter) {
  for (const auto& unit : engine.compiled().units) {
    for (const auto& p : unit.parameters) {
      if (p.parameter == parameter) return unit.name;
    }
  }
  return "";
}

LlamaConfig config_of_weights(const std::filesystem::path& weights) {
  switch (identify(weights)) {
    case FileKind::huggingface_folder:
      return LlamaConfig::read(weights);
    case FileKind::checkpoint:
      return LlamaConfig::parse(read_checkpoint_summary(weights).texts.model_config, weights.string());
    case FileKind::tokens:
      break;
  }
  throw_user_error("{} is a token file; weights are a checkpoint or a Hugging Face folder", weights.string());
}

void load_weights(World& world, Device& device, const std::filesystem::path& weights,
                  const LlamaConfig& config, Engine& engine, WeightsReading reading) {
  const auto tensors = tensor_infos(engine);
  auto pieces = tensor_pieces(engine.pieces_to_load());
  for (auto& piece : pieces) piece.exp_avg = piece.exp_avg_sq = {};
  std::unique_ptr<WeightsSource> source;  // null: a checkpoint of which each rank reads what it needs
  agree(world, [&] {
    const FileKind kind = identify(weights);
    if (kind == FileKind::tokens) {
      throw_user_error("{} is a token file; weights are a checkpoint or a Hugging Face folder",
                       weights.string());
    }
    if (kind == FileKind::huggingface_folder) {
      source = open_safetensors(weights, config.tie_word_embeddings);
    } else if (reading == WeightsReading::broadcast) {
      source = open_checkpoint_weights(weights);
    }
  });
  if (source) {
    load_weights(world, device, *source, tensors, pieces, reading);
  } else {
    load_checkpoint(world, device, weights, tensors, pieces);
  }
}

InferenceSession open_for_inference(World& world, const std::filesystem::path& weights, BatchShape batch,
                                    const DeviceOptions& options, const Log& log) {
  InferenceSession session;
  const int threads = threads_per_rank(world, options.threads);
  agree(world, [&] {
    session.config = config_of_weights(weights);
    if (batch.context == 0 && batch.seq_len > session.config.max_position_embeddings) {
      throw_user_error("a sequence length of {} is larger than max_position_embeddings = {} of {}",
                       batch.seq_len, session.config.max_position_embeddings, weights.string());
    }
    session.model = make_llama(session.config);
  });
  auto& compute = session.compute;
  compute = open_compute(world, {.device = options.device, .threads = threads, .option = "--device"}, log);
  log.info("device: {}", compute.device().describe());
  EngineOptions engine;
  engine.batch = batch;
  engine.training = false;
  if (compute.on_gpu()) engine.precision.param = engine.precision.compute = DType::bfloat16;
  check_gpus(world, compute, engine.precision.compute, false, session.config.head_dim, log);
  session.engine =
      std::make_unique<Engine>(*session.model, compute.device(), *compute.host, compute.world(), engine);
  load_weights(world, compute.device(), weights, session.config, *session.engine);
  return session;
}

std::optional<Evaluation> evaluate_file(World& world, Engine& engine, const TokenFile& file,
                                        const BatchOptions& options,
                                        const std::function<bool()>& whether_to_drop) {
  const std::int64_t samples = file.samples(options.seq_len);
  const std::int64_t per_round = options.micro_batch * world.size();
  double loss_sum = 0;
  std::int64_t valid = 0;
  for (std::int64_t round = 0; round * per_round < samples; ++round) {
    if (whether_to_drop && whether_to_drop()) return std::nullopt;
    std::vector<std::int64_t> mine(options.micro_batch, -1);
    for (std::int64_t i = 0; i < options.micro_batch; ++i) {
      const std::int64_t sample = round * per_round + world.rank() * options.micro_batch + i;
      if (sample < samples) mine[i] = sample;
    }
    HostBatch batch;
    std::exception_ptr failure;
    engine.record().act("reading the data");
    try {
      batch = make_batch(file, options, mine);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const FlightScope scope(engine.record(), {"agreement on the data"});
      agree(world, [&] {
        if (failure) std::rethrow_exception(failure);
      });
    }
    loss_sum += engine.evaluate(batch);
    valid += batch.valid_labels;
  }
  world.sum(std::span(&loss_sum, 1));
  world.sum(std::span(&valid, 1));
  Evaluation result{.loss = std::numeric_limits<double>::quiet_NaN(), .tokens = valid};
  if (valid > 0) result.loss = loss_sum / static_cast<double>(valid);
  result.perplexity = std::exp(result.loss);
  return result;
}

Evaluation evaluate(World& world, const std::filesystem::path& weights, const std::filesystem::path& data,
                    EvaluateOptions o, const Log& log) {
  std::unique_ptr<TokenFile> file;
  agree(world, [&] {
    file = std::make_unique<TokenFile>(data);
    if (o.seq_len == 0) o.seq_len = seq_len_of(*file, weights);
    check_vocabulary(*file, config_of_weights(weights), weights.string());
    check_rows(*file, o.seq_len, "--seq-len");
    if (file->samples(o.seq_len) < 1) {
      throw_user_error("{} has {} tokens, too few for one sample of {} + 1; use a smaller --seq-len",
                       data.string(), file->tokens(), o.seq_len);
    }
  });
  on_rank_0(world, [&] { check_tokenizer(*file, weights, log); });
  const auto session = open_for_inference(world, weights, {o.micro_batch, o.seq_len}, o.compute, log);
  const BatchOptions options{
      .seq_len = o.seq_len, .micro_batch = o.micro_batch, .vocabulary = session.config.vocab_size};
  const Evaluation result = *evaluate_file(world, *session.engine, *file, options);
  if (result.tokens == 0) log.warning("{} has no valid labels: there is no loss", data.string());
  return result;
}

}  // namespace llampi
