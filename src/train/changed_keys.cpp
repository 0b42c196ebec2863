// SPDX-License-Identifier: Apache-2.0
#include "train/changed_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/content.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/train/run_text.hpp"
#include "train/data_position.hpp"
#include "train/decisions.hpp"
#include "train/engine_config.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;
using Values = std::map<std::string, std::string>;

struct Rule {
  Effect effect;
  bool is_path = false;  ///< compared as places
  bool is_of_this_start =
      false;  ///< says where a run is and how this job begins it: no other run than before
};

/// Every key. The place to decide what a new one means for runs that continue.
const std::map<std::string, Rule>& rules() {
  using enum Effect;
  static const std::map<std::string, Rule> kRules = {
      {"run.dir", {.effect = free, .is_path = true, .is_of_this_start = true}},
      {"run.device", {free}},
      {"run.threads", {free}},
      {"run.bind", {free}},
      {"run.seed", {curve}},
      {"run.resume", {.effect = free, .is_path = true, .is_of_this_start = true}},
      {"run.resume_with_changes", {.effect = free, .is_of_this_start = true}},
      {"run.max_hours", {free}},
      {"run.watchdog_seconds", {free}},
      {"run.verify_replicas_every", {free}},
      {"run.share_gpu", {free}},
      {"run.deterministic", {free}},
      {"run.tf32", {curve}},
      {"run.attention", {free}},
      {"run.attention_workspace", {free}},
      {"run.logits_workspace", {free}},
      {"run.tuning", {free}},
      {"run.cuda_graph", {free}},
      {"model.config",
       {.effect = free, .is_path = true}},  // the models themselves are compared: check_same_model()
      {"model.weights", {.effect = beginning, .is_path = true}},
      {"lora.rank", {curve}},
      {"lora.alpha", {curve}},
      {"lora.dropout", {curve}},
      {"lora.targets", {curve}},
      {"lora.scaling", {curve}},
      {"lora.base_dtype", {curve}},
      {"lora.weights", {.effect = beginning, .is_path = true}},
      {"data.train", {.effect = free, .is_path = true}},  // its content is compared
      {"data.eval", {.effect = free, .is_path = true}},
      {"data.seq_len", {curve}},
      {"data.shuffle", {curve}},
      {"data.document_mask", {curve}},
      {"train.steps", {length}},
      {"train.epochs", {length}},
      {"train.micro_batch", {free}},
      {"train.global_batch", {curve}},
      {"train.eval_every", {free}},
      {"train.not_finite", {free}},
      {"optimizer.lr", {curve}},
      {"optimizer.min_lr", {curve}},
      {"optimizer.schedule", {curve}},
      {"optimizer.warmup_steps", {curve}},
      {"optimizer.beta1", {curve}},
      {"optimizer.beta2", {curve}},
      {"optimizer.eps", {curve}},
      {"optimizer.weight_decay", {curve}},
      {"optimizer.clip_grad_norm", {curve}},
      {"optimizer.no_decay", {curve}},
      {"optimizer.weight_decays", {curve}},
      {"optimizer.lr_factors", {curve}},
      {"optimizer.frozen", {curve}},
      {"optimizer.loss_scale", {beginning}},
      {"optimizer.master_dtype", {curve}},
      {"optimizer.gradient_dtype", {curve}},
      {"optimizer.moment_dtype", {curve}},
      {"fsdp.strategy", {free}},
      {"fsdp.wrap", {free}},
      {"fsdp.wrap_min_params", {free}},
      {"fsdp.wrap_modules", {free}},
      {"fsdp.shard_group_size", {free}},
      {"fsdp.shard_optimizer_over_replicas", {free}},
      {"fsdp.accumulate", {free}},
      {"fsdp.sum_order", {free}},
      {"fsdp.reduction", {free}},
      {"fsdp.nccl_ctas", {free}},
      {"fsdp.nccl_window", {free}},
      {"fsdp.nccl_copy_engines", {free}},
      {"fsdp.nccl_split_share", {free}},
      {"fsdp.all_reduce_stream", {free}},
      {"fsdp.product_sms", {free}},
      {"fsdp.backward_prefetch", {free}},
      {"fsdp.forward_prefetch", {free}},
      {"fsdp.limit_all_gathers", {free}},
      {"fsdp.param_dtype", {curve}},
      {"fsdp.product_dtype", {free}},  // state has no 8 bits: a run may change to them and back
      {"fsdp.fp8_gradient_dtype", {free}},
      {"fsdp.fp8_scales", {free}},
      {"fsdp.reduce_dtype", {curve}},
      {"fsdp.cpu_offload", {free}},
      {"fsdp.offload_step", {free}},
      {"fsdp.sync_init", {free}},
      {"activation.checkpointing", {free}},
      {"activation.offload", {free}},
      {"checkpoint.every", {free}},
      {"checkpoint.keep", {free}},
      {"checkpoint.keep_every", {free}},
      {"checkpoint.async", {free}},
      {"checkpoint.fallback_dir", {.effect = free, .is_path = true}},
      {"checkpoint.wait_minutes", {free}},
      {"checkpoint.content", {free}},
      {"checkpoint.state_dtype", {free}},
      {"checkpoint.io", {free}},
      {"checkpoint.writers_per_node", {free}},
      {"checkpoint.stripes", {free}},
      {"checkpoint.stripe_bytes", {free}},
      {"log.every", {free}},
      {"log.trace", {free}},
      {"log.plan", {free}},
      {"log.tensorboard", {free}},
      {"log.prometheus", {.effect = free, .is_path = true}},
  };
  return kRules;
}

/// Of keys that there are not, none applies.
Rule rule_of(const std::string& key) {
  const auto found = rules().find(key);
  return found == rules().end() ? Rule{Effect::free} : found->second;
}

constexpr const char* kAutomatic = "auto";

/// Where such a key is `auto`, the decision is in the run's checkpoints.
bool is_decided_once(const std::string& key) {
  return std::ranges::find(kDecidedKeys, key) != kDecidedKeys.end();
}

std::string place_of(const std::string& path) {
  std::error_code error;
  fs::path place = fs::weakly_canonical(fs::absolute(path, error), error).lexically_normal();
  if (error || place.empty()) return path;  // of a place that cannot be looked at, only the text is known
  if (place.filename() == "config.json" || !place.has_filename()) place = place.parent_path();
  return place.string();
}

/// Nothing where one of them is no such number.
template <class Number>
std::optional<bool> equal_as(const std::string& one, const std::string& other) {
  const auto a = parse_number<Number>(one), b = parse_number<Number>(other);
  if (!a || !b) return std::nullopt;
  return *a == *b;
}

bool same_value(const std::string& key, const std::string& one, const std::string& other) {
  if (one == other) return true;
  if (rule_of(key).is_path) return same_place(one, other);
  // Large integers may be the same double.
  for (const auto equal : {equal_as<std::int64_t>(one, other), equal_as<std::uint64_t>(one, other),
                           equal_as<double>(one, other)}) {
    if (equal) return *equal;
  }
  return false;
}

/// Both runs' keys, as far as they can be compared.
struct Sides {
  RunText then, now;
};

Sides sides_of(const Continuing& run) {
  Sides sides{read_run_text(run.saved.texts.run_config), read_run_text(run.texts.resolved)};
  if (sides.then.values.empty()) {
    sides.now.values.clear();
  } else {
    const Values defaults = read_run_text(run.texts.defaults).values;
    for (Values* values : {&sides.then.values, &sides.now.values})
      values->insert(defaults.begin(), defaults.end());
  }
  // The state is there in any case.
  const auto set = [&](const char* key, auto then, auto now) {
    sides.then.values[key] = fmt::format("{}", then);
    sides.now.values[key] = fmt::format("{}", now);
  };
  const checkpoint::TrainingState &saved = run.saved.state, &fresh = run.fresh;
  set("data.seq_len", saved.seq_len, fresh.seq_len);
  set("train.global_batch", saved.global_batch, fresh.global_batch);
  set("run.seed", static_cast<std::uint64_t>(saved.seed), static_cast<std::uint64_t>(fresh.seed));
  set("data.shuffle", saved.shuffle, fresh.shuffle);
  return sides;
}

/// What decides on the learning rates, of the checkpoint's run; nothing if it is not known.
std::optional<optim::LearningRateSchedule> schedule_then(const Continuing& run, const RunText& then) {
  const auto number = [&](const char* key) { return parse_number<double>(then.value(key)); };
  const auto lr = number("optimizer.lr"), min_lr = number("optimizer.min_lr"),
             warmup_steps = number("optimizer.warmup_steps"), steps = number("train.steps"),
             epochs = number("train.epochs");
  const auto schedule = from_word<optim::Decay>(then.value("optimizer.schedule"));
  if (!schedule || !lr || !min_lr || !warmup_steps || !steps || !epochs) return std::nullopt;
  Config c;
  c.optimizer.lr = *lr;
  c.optimizer.min_lr = *min_lr;
  c.optimizer.schedule = *schedule;
  c.optimizer.warmup_steps = static_cast<std::int64_t>(*warmup_steps);
  c.train.steps = static_cast<std::int64_t>(*steps);
  c.train.epochs = *epochs;
  return schedule_of(c, total_steps(c, run.saved.state));
}

std::int64_t steps_now(const Continuing& run) {
  return total_steps(run.config, continue_from(run.saved.state, run.fresh));
}

/// Of train.steps and train.epochs: a longer run is one that goes on; a shorter one would have had other
/// learning rates, unless nothing of their fall is done yet, or there is nothing left to do at all.
Effect effect_of_length(const Continuing& run, const RunText& then) {
  const auto planned = schedule_then(run, then);
  const std::int64_t now = steps_now(run), done = run.saved.state.step;
  if (!planned || now >= planned->total_steps || now <= done) return Effect::free;
  auto shorter = *planned;
  shorter.total_steps = now;
  return shorter.at(done) == planned->at(done) ? Effect::free : Effect::curve;
}

Effect effect_here(const Continuing& run, const Sides& sides, const Change& change) {
  const Effect effect = rule_of(change.key).effect;
  if (effect == Effect::length) return effect_of_length(run, sides.then);
  // A checkpoint that is given has its own weights, whatever else is.
  if (change.key == "model.weights" && run.config.run.resume.mode != ResumeFrom::Mode::automatic)
    return Effect::free;
  // The base of adapters is compared by its checksums, wherever it is.
  if (change.key == "model.weights" && run.config.lora.rank > 0) return Effect::free;
  if (change.key == "lora.weights" && run.config.run.resume.mode != ResumeFrom::Mode::automatic)
    return Effect::free;
  // Where no loss is scaled, or none was, it is not the checkpoint's.
  if (change.key == "optimizer.loss_scale" && (run.fresh.loss_scale <= 0 || run.saved.state.loss_scale <= 0))
    return Effect::free;
  // "auto" may have been just this, which depends on the device.
  if (change.key == "fsdp.param_dtype" && (change.then == "auto" || change.now == "auto"))
    return Effect::free;
  return effect;
}

/// The content of data.train, if it is another; files of other names may hold the same.
std::optional<Change> change_of_data(const Continuing& run, const Sides& sides) {
  const std::string noted = sides.then.note("data.train");
  const std::int64_t then = run.saved.state.data_tokens, now = run.fresh.data_tokens;
  if (noted.empty() ? then == now : data::same_content(noted, run.data)) return std::nullopt;
  const auto with_path = [](const std::string& path, const std::string& content) {
    return path.empty() ? content : fmt::format("{} ({})", path, content);
  };
  return Change{
      "data.train",
      with_path(sides.then.value("data.train"), noted.empty() ? fmt::format("{} tokens", then) : noted),
      with_path(run.config.data.train, run.data), Effect::curve};
}

std::string shown(const std::string& value) { return value.empty() ? "(empty)" : value; }

}  // namespace

bool same_place(const std::string& one, const std::string& other) {
  return one == other || (!one.empty() && !other.empty() && place_of(one) == place_of(other));
}

std::optional<Effect> effect_of(const std::string& key) {
  const auto found = rules().find(key);
  if (found == rules().end()) return std::nullopt;
  return found->second.effect;
}

std::vector<Change> changes_of(const Continuing& run) {
  const Sides sides = sides_of(run);
  const auto data = change_of_data(run, sides);
  std::vector<Change> changes;
  if (data) changes.push_back(*data);
  for (const auto& [key, now] : sides.now.values) {
    Change change{key, sides.then.value(key), now};
    if (rule_of(key).is_of_this_start || (data && key == data->key) || same_value(key, change.then, now))
      continue;
    if (is_decided_once(key) && now == kAutomatic) continue;  // it stays what it was
    change.effect = effect_here(run, sides, change);
    changes.push_back(change);
  }
  return changes;
}

/// What a change of a key means that otherwise only matters at the beginning.
const char* effect_of_beginning(const Continuing& run, const Change& change) {
  if (effect_of(change.key) != Effect::beginning) return "";
  if (change.key == "model.weights" && run.config.lora.rank > 0)
    return "; the next steps read the base from there, and its checksums must be the same";
  return "; without effect on a run that has begun";
}

void report_changes(const Continuing& run, const std::vector<Change>& changes, const Log& log) {
  const std::int64_t done = run.saved.state.step;
  for (const auto& change : changes) {
    log.info("changed since step {}: {} = {}, was {}{}", done, change.key, shown(change.now),
             shown(change.then), effect_of_beginning(run, change));
  }
  const auto then = schedule_then(run, sides_of(run).then);
  if (!then || done == 0) return;
  const auto now = schedule_of(run.config, steps_now(run));
  constexpr double kTold = 1e-3;  // of the learning rate: less is not seen in the numbers below
  if (done >= now.total_steps || std::abs(now.at(done) - then->at(done)) <= kTold * then->at(done)) return;
  if (then->at(done) == 0 && now.at(done + 1) == 0) return;  // the last step of both
  log.warning(
      "the schedule is not the one that steps 1 to {} had: the learning rate was {:.3g} at step {}, and is "
      "{:.3g} at step {} (of {} steps, formerly of {})",
      done, then->at(done), done, now.at(done + 1), done + 1, now.total_steps, then->total_steps);
}

void refuse_changes(const Config& config, const std::vector<Change>& changes, const std::string& source) {
  if (config.run.resume_with_changes) return;
  std::vector<std::string> refused;
  for (const auto& change : changes) {
    if (change.effect == Effect::curve || change.effect == Effect::beginning)
      refused.push_back(fmt::format("{} = {}, now {}", change.key, shown(change.then), shown(change.now)));
  }
  if (refused.empty()) return;
  const bool shapes_adapters = std::ranges::any_of(changes, [](const Change& change) {
    return change.key == "lora.rank" || change.key == "lora.targets";
  });
  throw_user_error(
      "{} was saved with {}; {}", source, fmt::join(refused, ", and "),
      shapes_adapters
          ? "adapters keep their rank and their layers: use another run.dir to start a new run"
          : "use another run.dir to start a new run, or set run.resume_with_changes = true to continue this one with "
            "the new values");
}

std::string recorded_text(const Continuing& run) {
  const RunText then = read_run_text(run.saved.texts.run_config);
  std::string text = run.texts.resolved + "\n";
  const auto keep = [&](const std::string& key) {
    if (then.values.contains(key)) text = with_value(text, key, then.value(key));
  };
  // A checkpoint that is given has its own weights: the values of the run that wrote it are not this one's.
  if (run.config.run.resume.mode == ResumeFrom::Mode::automatic) {
    keep("lora.weights");
    if (run.config.lora.rank == 0) {  // otherwise it is read again, from wherever it is now
      keep("model.weights");
      if (const auto weights = then.note("model.weights"); !weights.empty())
        text = with_note(text, "model.weights", weights);
    }
  }
  for (const char* began : {kBeganFrom, kBeganAt})
    if (const auto note = then.note(began); !note.empty()) text = with_note(text, began, note);
  if (run.fresh.loss_scale > 0 && run.saved.state.loss_scale > 0) keep("optimizer.loss_scale");
  for (const auto& [key, value] : read_run_text(run.texts.resolved).values) {
    if (is_decided_once(key) && value == kAutomatic) keep(key);
  }
  return with_note(text, "data.train", run.data);
}

}  // namespace llampi::train
