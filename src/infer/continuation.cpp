// SPDX-License-Identifier: Apache-2.0
#include "infer/continuation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/infer/session.hpp"

namespace llampi::infer {
namespace {

/// Of a rank's sequence; the largest of all ranks counts.
enum class Progress : std::int64_t { ended, goes_on, not_finite };

/// Whether any rank goes on. Collective. @throws UserError on all ranks, if one has logits that are not finite
bool any_goes_on(comm::World& world, Progress here) {
  const auto most = static_cast<Progress>(comm::max_over_ranks(world, static_cast<std::int64_t>(here)));
  if (most == Progress::not_finite) refuse_logits("no token can be chosen");
  return most == Progress::goes_on;
}

bool are_finite(const std::vector<double>& logits) {
  return std::ranges::all_of(logits, [](double logit) { return std::isfinite(logit); });
}

}  // namespace

std::vector<double> Continuation::pass(std::span<const std::int32_t>& waiting) {
  const std::int64_t rows = engine_.options().batch.seq_len;
  const std::int64_t count = std::min(rows, std::ssize(waiting));
  const std::int64_t kv_len = count > 0 ? length_ : 0;
  device::HostBatch batch(
      rows);  // what stands behind the tokens comes after them, and the next pass overwrites it
  std::copy_n(waiting.begin(), count, batch.tokens().begin());
  std::fill(batch.labels().begin(), batch.labels().end(), -1);
  std::iota(batch.positions().begin(), batch.positions().end(), static_cast<std::int32_t>(kv_len));
  batch.cu_seqlens()[1] = static_cast<std::int32_t>(rows);
  batch.documents = 1;
  batch.kv_len = kv_len;
  auto logits = engine_.logits(batch, std::max<std::int64_t>(count, 1) - 1);
  length_ += count;
  waiting = waiting.subspan(static_cast<std::size_t>(count));
  return logits;
}

Continued continue_sequence(comm::World& world, fsdp::Engine& engine, const Beginning& beginning,
                            const std::vector<std::int32_t>& stop,
                            const std::function<std::int32_t(std::vector<double>&, std::int64_t)>& choose,
                            const std::function<void(std::int32_t)>& added) {
  Continued result;
  Continuation continuation(engine);
  std::int32_t next = 0;
  std::span<const std::int32_t> waiting = beginning.tokens;
  auto progress = waiting.empty() || beginning.most < 1 ? Progress::ended : Progress::goes_on;
  while (any_goes_on(world, progress)) {
    const bool goes_on = progress == Progress::goes_on;
    if (!goes_on) waiting = {};
    auto logits = continuation.pass(waiting);
    if (!goes_on || !waiting.empty()) continue;
    if (!are_finite(logits)) {
      progress = Progress::not_finite;
      continue;
    }
    next = choose(logits, std::ssize(result.tokens));
    result.stopped = std::ranges::find(stop, next) != stop.end();
    if (!result.stopped) {
      result.tokens.push_back(next);
      if (added) added(next);
    }
    if (result.stopped || std::ssize(result.tokens) >= beginning.most) progress = Progress::ended;
    waiting = {&next, 1};
  }
  return result;
}

}  // namespace llampi::infer
