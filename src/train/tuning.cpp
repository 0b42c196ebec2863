// SPDX-License-Identifier: Apache-2.0
#include "train/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// What a file says of this GPU. Of another GPU it says nothing, which costs a run that continues its bits.
/// @param is_demanded the user's own: else what cannot be read is passed over
RememberedChoices read_choices(const fs::path& file, const std::string& gpu, bool is_demanded,
                               const Log& log) {
  std::error_code ignored;
  if (file.empty() || (!is_demanded && !fs::exists(file, ignored))) return {};
  RememberedChoices choices;
  try {
    choices = parse_choices(io::read_whole(file), file.string());
  } catch (const UserError& error) {
    if (is_demanded) throw;
    log.warning("{}; it is not used", error.what());
    return {};
  }
  if (choices.gpu == gpu) return choices;
  log.warning("{} is of {}, and this is {}: products are chosen anew, and bits will differ", file.string(),
              choices.gpu, gpu);
  return {};
}

/// All that is known, the most important first. On rank 0.
RememberedChoices remembered(const ChoiceSources& sources, const std::string& gpu, const Log& log) {
  RememberedChoices choices{.gpu = gpu};
  if (!sources.checkpoint.empty()) {
    const fs::path file = sources.checkpoint.parent_path() / kChoicesFile;
    std::error_code ignored;
    if (!fs::exists(file, ignored))
      log.warning("there is no {}: products may be computed otherwise than before, with other last bits",
                  file.string());
    choices.add(read_choices(file, gpu, false, log));
  }
  if (sources.tuning.mode == Tuned::Mode::file)
    choices.add(read_choices(sources.tuning.file, gpu, true, log));
  choices.add(read_choices(choices_in_cache(gpu), gpu, false, log));
  return choices;
}

/// A cache that cannot be written costs the next run some seconds.
void keep_in_cache(RememberedChoices choices, const Log& log) {
  const fs::path file = choices_in_cache(choices.gpu);
  if (file.empty()) return;
  try {
    choices.add(read_choices(file, choices.gpu, false, log));  // another job may have written it meanwhile
    fs::create_directories(file.parent_path());
    io::write_whole(file, to_json(choices));
  } catch (const std::exception& error) {
    log.info("choices of products are not kept for other runs: {}", error.what());
  }
}

void require_equal_gpus(comm::World& world, const std::string& gpu) {
  const auto gpus = world.all_gather(gpu);
  const auto other = std::ranges::find_if(gpus, [&](const auto& of_rank) { return of_rank != gpus.front(); });
  if (other == gpus.end()) return;
  throw_user_error(
      "rank 0 has {}, and rank {} has {}: what is fastest on one need not be there on the other; give the job "
      "equal GPUs, or set run.tuning = off",
      gpus.front(), other - gpus.begin(), *other);
}

}  // namespace

void RememberedChoices::add(const RememberedChoices& other) {
  products.insert(other.products.begin(), other.products.end());
  runs.insert(other.runs.begin(), other.runs.end());
}

RememberedChoices parse_choices(std::string_view text, const std::string& source) {
  try {
    const auto json = nlohmann::json::parse(text);
    return {.gpu = json.at("gpu").get<std::string>(),
            .products = json.at("products").get<device::Choices>(),
            .runs = json.at("runs").get<std::set<std::string>>()};
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{} is no file of run.tuning: {}", source, error.what());
  }
}

std::string to_json(const RememberedChoices& choices) {
  const nlohmann::json json = {{"gpu", choices.gpu}, {"products", choices.products}, {"runs", choices.runs}};
  return json.dump(1) + "\n";
}

fs::path choices_in_cache(const std::string& gpu) {
  const auto folder = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? fs::path() : fs::path(value);
  };
  fs::path cache = folder("XDG_CACHE_HOME");
  if (cache.empty() && !folder("HOME").empty()) cache = folder("HOME") / ".cache";
  if (cache.empty()) return {};
  std::string name;
  for (const char c : gpu)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : (name.ends_with('-') ? '\0' : '-');
  std::erase(name, '\0');
  return cache / "llampi" / ("tuning-" + name + ".json");
}

std::string run_shape_text(const Config& config, const fsdp::EngineOptions& options,
                           const model::LlamaConfig& model, int ranks) {
  const fsdp::Precision& precision = options.precision;
  return fmt::format(
      "vocabulary {}, hidden {}, intermediate {}, heads {}/{} of {}; {} x {} tokens, {}; {}, gradients {}, {} and "
      "{}{}{}; {} over {} ranks, {}",
      model.vocab_size, model.hidden_size, model.intermediate_size, model.query_heads, model.key_value_heads,
      model.head_dim, options.batch.sequences, options.batch.seq_len,
      options.micro_batches > 1 ? "accumulated" : "one micro-batch", to_string(precision.compute),
      to_string(precision.reduce), to_string(precision.gradient_shard),
      options.accumulate_unsharded ? "unsharded" : "sharded", config.run.tf32 ? ", tf32" : "",
      config.run.deterministic ? "" : ", any order", word_of(options.strategy), ranks,
      word_of(options.wrap.policy));
}

RememberedChoices make_choices(comm::World& world, fsdp::Engine& engine, device::Device& device,
                               const ChoiceSources& sources, const Log& log) {
  device::Tuning* const tuning = device.tuning();
  if (tuning == nullptr || sources.tuning.mode == Tuned::Mode::off) return {};
  const std::string gpu = tuning->key();
  require_equal_gpus(world, gpu);
  RememberedChoices choices =
      parse_choices(comm::bytes_from_rank_0(world, [&] { return to_json(remembered(sources, gpu, log)); }),
                    "what rank 0 remembers");
  tuning->adopt(choices.products);
  if (choices.runs.contains(sources.run)) return choices;

  const double begin = steady_seconds();
  const std::size_t known = choices.products.size();
  tuning->measure(true);
  engine.rehearse();
  tuning->measure(false);
  choices.runs.insert(sources.run);
  choices.add({.gpu = gpu, .products = tuning->choices()});
  choices =
      parse_choices(comm::bytes_from_rank_0(world, [&] { return to_json(choices); }), "rank 0's choice");
  tuning->adopt(choices.products);
  comm::on_rank_0(world, [&] { keep_in_cache(choices, log); });
  log.info("products: {} chosen by timing in {:.1f} s, {} remembered", choices.products.size() - known,
           steady_seconds() - begin, known);
  return choices;
}

void report_misfits(device::Device& device, const Log& log) {
  const device::Tuning* const tuning = device.tuning();
  const auto misfits = tuning == nullptr ? std::vector<std::string>{} : tuning->misfits();
  if (misfits.empty()) return;
  log.warning("{} remembered for products cannot be used any more, so bits will differ: {}{}",
              count(std::ssize(misfits), "algorithm"), misfits.front(), misfits.size() > 1 ? ", ..." : "");
}

}  // namespace llampi::train
