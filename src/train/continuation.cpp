#include "train/continuation.hpp"

#include <algorithm>
#include <numeric>

#include "llampi/core/error.hpp"

namespace llampi {
namespace {

// Of a pass: one row costs as much as a few, because reading the weights does, and a prompt goes in by so
// many.
constexpr std::int64_t kTokens = 16;

}  // namespace

BatchShape generation_shape(std::int64_t tokens) {
  return {
      .sequences = 1, .seq_len = kTokens, .context = (tokens + kTokens - 1) / kTokens * kTokens + kTokens};
}

std::vector<double> Continuation::feed(std::span<const std::int32_t> tokens) {
  require(!tokens.empty(), "nothing to continue");
  const std::int64_t pass = engine_.options().batch.seq_len;
  std::vector<double> logits;
  while (!tokens.empty()) {
    const std::int64_t count = std::min(pass, std::ssize(tokens));
    HostBatch batch(
        pass);  // what stands behind the tokens comes after them, and is overwritten by the next pass
    std::copy_n(tokens.begin(), count, batch.tokens().begin());
    std::fill(batch.labels().begin(), batch.labels().end(), -1);
    std::iota(batch.positions().begin(), batch.positions().end(), static_cast<std::int32_t>(length_));
    batch.segment_offsets()[1] = static_cast<std::int32_t>(pass);
    batch.segments = 1;
    batch.past = length_;
    logits = engine_.logits(batch, count - 1);
    length_ += count;
    tokens = tokens.subspan(static_cast<std::size_t>(count));
  }
  return logits;
}

}  // namespace llampi
