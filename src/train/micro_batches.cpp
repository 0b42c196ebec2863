// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/micro_batches.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/sum_order.hpp"

namespace llampi::train {
namespace {

/// What divides the batch: "use 2 or 4 ranks, or train.global_batch = 3 or 6". A run that continues keeps its global batch.
std::string advice_on_batch(const Config& c, int ranks) {
  const std::int64_t batch = c.train.global_batch, micro_batch = c.train.micro_batch.value_or(1);
  const bool can_stay = batch % micro_batch == 0 || batch % ranks == 0;
  const std::int64_t other_ranks_micro_batch = can_stay ? micro_batch : 1;
  const char* const with = can_stay ? "" : " with train.micro_batch = 1";
  std::vector<std::string> ways;
  const auto divides = [&](int some_ranks) {
    const bool allowed =
        c.fsdp.sum_order == fsdp::SumOrder::any || std::has_single_bit(static_cast<unsigned>(some_ranks));
    return allowed && batch % other_ranks_micro_batch == 0 &&
           batch / other_ranks_micro_batch % some_ranks == 0;
  };
  int fewer = ranks, more = ranks;
  while (fewer > 0 && !divides(fewer)) --fewer;
  while (more < 2 * ranks && !divides(more)) ++more;
  if (fewer > 0 && divides(more)) {
    ways.push_back(fmt::format("{} or {} ranks{}", fewer, more, with));
  } else if (fewer > 0 || divides(more)) {
    ways.push_back(count(fewer > 0 ? fewer : more, "rank") + with);
  }
  if (batch >= ranks && batch % ranks == 0) {
    const auto sizes = divisors(batch / ranks);
    ways.push_back(
        fmt::format("train.micro_batch = {}", *(std::ranges::upper_bound(sizes, micro_batch) - 1)));
  }
  if (micro_batch <= std::numeric_limits<std::int64_t>::max() / 2 / ranks) {
    const std::int64_t per_pass = ranks * micro_batch, below = batch / per_pass * per_pass;
    ways.push_back(fmt::format("train.global_batch = {}{}", below > 0 ? fmt::format("{} or ", below) : "",
                               below + per_pass));
  }
  return fmt::format("use {}", fmt::join(ways, ", or "));
}

/// Before they are compiled, which takes memory for each: a batch in tokens, as other programs count, would take all there is.
void refuse_too_many(std::int64_t micro_batches, const Config& c) {
  constexpr std::int64_t kMost = 4096;
  if (micro_batches <= kMost) return;
  const std::int64_t batch = c.train.global_batch, sequences = batch / c.data.seq_len;
  const std::string in_sequences =
      sequences == 0 ? ""
                     : fmt::format(" ({} fill {} of {})", count(batch, "token"), count(sequences, "sequence"),
                                   with_separators(c.data.seq_len));
  throw_user_error(
      "a step of {} is too long (at most {}): train.global_batch = {} counts sequences, not tokens{}; lower it, or "
      "{} train.micro_batch",
      count(micro_batches, "micro-batch", "es"), with_separators(kMost), batch, in_sequences,
      c.train.micro_batch ? "raise" : "set");
}

}  // namespace

int micro_batches_of_step(const Config& c, int ranks) {
  fsdp::check_tree_ranks(c.fsdp.sum_order, ranks);  // before a batch for these ranks is asked for
  const std::int64_t batch = c.train.global_batch, micro_batch = c.train.micro_batch.value_or(1);
  refuse_too_many(batch / ranks / micro_batch, c);
  const bool is_less = micro_batch > batch / ranks;  // without a product, which may be too large
  if (!is_less && batch % (ranks * micro_batch) == 0) return static_cast<int>(batch / (ranks * micro_batch));
  throw_user_error("train.global_batch = {} is {} {} x train.micro_batch = {}; {}", batch,
                   is_less ? "less than" : "not a multiple of", count(ranks, "rank"), micro_batch,
                   advice_on_batch(c, ranks));
}

}  // namespace llampi::train
