// SPDX-License-Identifier: Apache-2.0
#include "train/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/io/block_sums.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// What a file says; nothing where there is none.
/// @param is_demanded the user's own: else what cannot be read is passed over
TuningCache read_choices(const fs::path& file, bool is_demanded, const Log& log) {
  std::error_code ignored;
  if (file.empty() || (!is_demanded && !fs::exists(file, ignored))) return {};
  try {
    return parse_choices(io::read_whole(file), file.string());
  } catch (const std::exception& error) {
    if (is_demanded) throw;
    log.warning("{}; it is not used", error.what());
    return {};
  }
}

/// What of it is of this GPU. Warns if all of it is of others, which costs a run that continues its bits.
ChoicesByRun of_gpu(const TuningCache& choices, const std::string& gpu, const fs::path& file,
                    const Log& log) {
  if (const auto found = choices.find(gpu); found != choices.end()) return found->second;
  if (!choices.empty())
    log.warning(
        "{} is of {}, and this is {}: its matrix-product algorithms are not used, and the last bits will differ",
        file.string(), choices.begin()->first, gpu);
  return {};
}

/// Of the checkpoint's folder; nothing where it is no run that continues. On rank 0.
std::vector<ChoicesByRun> kept_with_checkpoint(const ChoiceSources& sources, const std::string& gpu,
                                               const Log& log) {
  if (sources.files.empty()) return {};
  TuningCache then;
  auto file = sources.files.begin();
  for (; file != sources.files.end() && then.empty(); ++file) then = read_choices(*file, false, log);
  if (!then.empty()) return {of_gpu(then, gpu, *std::prev(file), log)};
  if (sources.tuning.mode != TuningMode::Mode::off)  // with which there may never have been any
    log.warning("{} is missing: other matrix-product algorithms may be chosen, which changes the last bits",
                sources.files.front().string());
  return {};
}

/// On rank 0.
KnownChoices remembered(const ChoiceSources& sources, const TuningCache& given, const std::string& gpu,
                        const std::string& run, const Log& log) {
  std::vector<ChoicesByRun> places = kept_with_checkpoint(sources, gpu, log);
  if (sources.tuning.mode == TuningMode::Mode::off) {  // what these do not have is not timed
    KnownChoices known = known_choices(places, run);
    known.complete = true;
    return known;
  }
  if (!given.empty()) places.push_back(of_gpu(given, gpu, sources.tuning.file, log));
  const fs::path cache = choices_in_cache(gpu);
  places.push_back(of_gpu(read_choices(cache, false, log), gpu, cache, log));
  return known_choices(places, run);
}

/// "rank 0 has A, and rank 2 has B"; empty: all have the same. Collective.
std::string unequal_gpus(comm::World& world, const std::string& gpu) {
  const auto gpus = world.all_gather(gpu);
  const auto other = std::ranges::find_if(gpus, [&](const auto& of_rank) { return of_rank != gpus.front(); });
  if (other == gpus.end()) return {};
  return fmt::format("rank 0 has {}, and rank {} has {}", gpus.front(), other - gpus.begin(), *other);
}

}  // namespace

TuningCache parse_choices(std::string_view text, const std::string& source) {
  try {
    return nlohmann::json::parse(text).get<TuningCache>();
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{} is not a tuning file (run.tuning): {}", source, error.what());
  }
}

std::string to_json(const TuningCache& choices) { return nlohmann::json(choices).dump(1) + "\n"; }

KnownChoices known_choices(const std::vector<ChoicesByRun>& places, const std::string& run) {
  KnownChoices known;
  for (const ChoicesByRun& place : places) {
    if (const auto same = place.find(run); same != place.end()) {
      device::AlgorithmChoices products = same->second;
      for (auto& [product, choice] : products) {
        if (const auto before = known.products.find(product); before != known.products.end())
          choice = before->second;
      }
      return {std::move(products), true};
    }
    for (const auto& [other_run, products] : place) known.products.insert(products.begin(), products.end());
  }
  return known;
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
  for (const char c : gpu) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name += c;
    } else if (!name.ends_with('-')) {
      name += '-';
    }
  }
  return cache / "llampi" / ("tuning-" + name + ".json");
}

std::string run_name(const Config& config, const fsdp::Engine& engine, int ranks, bool few_labels) {
  const fsdp::CompiledModel& compiled = engine.compiled();
  std::string programs;
  for (const fsdp::Program* program : {&compiled.step, &compiled.evaluation}) {
    programs += fsdp::format_actions(*program, compiled.specs, compiled.units);
    for (const fsdp::Buffer& buffer : program->buffers)  // there, sizes are rounded
      programs += fmt::format("{} {} {}\n", buffer.rows, buffer.cols, to_string(buffer.dtype));
  }
  const fsdp::EngineOptions& options = engine.options();
  return fmt::format(
      "{:.2f} billion parameters, {} x {} tokens{}, {}, {} over {} {}{}{}{}, program {:08x}",
      static_cast<double>(engine.model().parameter_elements()) / 1e9, options.batch.sequences,
      options.batch.seq_len, few_labels ? ", loss mask" : "", to_string(options.precision.compute),
      word_of(options.strategy), ranks, ranks == 1 ? "rank" : "ranks", config.run.tf32 ? ", tf32" : "",
      config.run.deterministic ? "" : ", any order",
      config.fsdp.product_sms > 0 ? fmt::format(", {} multiprocessors", config.fsdp.product_sms) : "",
      io::crc32_of(std::as_bytes(std::span(programs))));
}

ChoiceSources choice_sources(const Config& config, const fs::path& checkpoint) {
  ChoiceSources sources{.tuning = config.run.tuning};
  if (checkpoint.empty()) return sources;
  sources.files.push_back(checkpoint.parent_path() / kChoicesFile);
  // A run's own checkpoint may lie in checkpoint.fallback_dir, by itself.
  sources.files.push_back(fs::path(config.run.dir) / "checkpoints" / kChoicesFile);
  return sources;
}

TunedRun make_choices(comm::World& world, fsdp::Engine& engine, device::Device& device,
                      const ChoiceSources& sources, const Config& config, bool few_labels, const Log& log) {
  TuningCache given;
  if (sources.tuning.mode ==
      TuningMode::Mode::file)  // wherever it computes: a file that cannot be read is refused
    comm::on_rank_0(world, [&] { given = read_choices(sources.tuning.file, true, log); });
  device::Autotuner* const autotuner = device.autotuner();
  if (autotuner == nullptr) return {};
  const std::string gpu = autotuner->key(), run = run_name(config, engine, world.size(), few_labels);
  const bool may_time = sources.tuning.mode != TuningMode::Mode::off;
  const std::string unequal = unequal_gpus(world, gpu);
  if (may_time && !unequal.empty())
    throw_user_error(
        "{}: the fastest algorithm of one is not always available on the other; give the job equal GPUs, or set "
        "run.tuning = off",
        unequal);

  bool complete = false;
  const auto from_rank_0 = [&](const auto& choices_there) {
    const auto text = comm::bytes_from_rank_0(world, [&] { return nlohmann::json(choices_there()).dump(); });
    return nlohmann::json::parse(text).template get<device::AlgorithmChoices>();
  };
  TunedRun choices{gpu, run, from_rank_0([&] {
                     const KnownChoices known = remembered(sources, given, gpu, run, log);
                     complete = known.complete;
                     return known.products;
                   })};
  autotuner->adopt(choices.products);
  if (!unequal.empty() && !choices.products.empty())
    log.warning("{}: where one lacks a matrix-product algorithm of the checkpoint, the last bits will differ",
                unequal);
  if (comm::from_rank_0(world, [&] { return complete; })) return choices;

  const double begin = steady_seconds();
  const device::AlgorithmChoices known = std::move(choices.products);
  // On one rank: the others wait for it, so that nothing else runs on its GPU meanwhile.
  if (world.rank() == 0) autotuner->measure(true);
  engine.rehearse(few_labels);
  autotuner->measure(false);
  report_choices(device, log);
  choices.products = from_rank_0([&] { return autotuner->choices(); });
  autotuner->adopt(choices.products);
  const auto is_new = [&](const auto& product) { return !known.contains(product.first); };
  const auto timed = std::ranges::count_if(choices.products, is_new);
  log.info("products: {} chosen by timing in {:.1f} s, {} remembered", timed, steady_seconds() - begin,
           std::ssize(choices.products) - timed);
  comm::on_rank_0(world, [&] {
    try {
      const fs::path cache = choices_in_cache(gpu);
      if (cache.empty()) return;
      io::create_folder(cache.parent_path());
      keep_choices(cache, choices, log);
    } catch (const std::exception& error) {  // the next run takes some seconds longer
      log.info("choices of products are not kept for other runs: {}", error.what());
    }
  });
  return choices;
}

void keep_choices(const fs::path& file, const TunedRun& choices, const Log& log) {
  TuningCache all = read_choices(file, false, log);  // another job may have written it meanwhile
  all[choices.gpu][choices.run] = choices.products;
  io::write_whole(file, to_json(all));
}

void report_choices(device::Device& device, const Log& log) {
  const device::Autotuner* const autotuner = device.autotuner();
  const auto warnings = autotuner == nullptr ? std::vector<std::string>{} : autotuner->warnings();
  if (warnings.empty()) return;
  log.warning("of {}: {}", count(std::ssize(warnings), "product"), warnings.front());
}

}  // namespace llampi::train
