// SPDX-License-Identifier: Apache-2.0
#include "train/step_agreement.hpp"

#include <algorithm>
#include <cmath>

namespace llampi::train {
namespace {

void visit_sums(StepFacts& facts, const auto& visit) {
  visit(facts.valid_labels);
  visit(facts.failed_ranks);
  visit(facts.stop.max_hours);
  visit(facts.stop.signal);
  visit(facts.stop.file);
  for (auto& word : facts.losses.words()) visit(word);
  visit(facts.busy_microseconds);
  visit(facts.fp8.saturated);
  visit(facts.fp8.zero_scales);
}

void visit_maxima(StepFacts& facts, const auto& visit) {
  std::apply([&](auto&... counts) { (visit(counts), ...); }, facts.counts.members());
  visit(facts.step_microseconds);
  visit(facts.busiest.number);
  visit(facts.memory_bytes);
  visit(facts.gpu_process);
}

constexpr std::int64_t kLastRank = (std::int64_t{1} << RankTime::kRankBits) - 1;

}  // namespace

/// Of equal times the first rank counts.
RankTime::RankTime(double seconds, int rank)
    : number(std::llround(std::max(0.0, seconds) * 1e6) << kRankBits | (kLastRank - rank)) {}

int RankTime::rank() const { return static_cast<int>(kLastRank - (number & kLastRank)); }

void StepAgreement::start(const StepFacts& own) {
  require(work_ == nullptr, "an agreement on a step that was not taken");
  StepFacts facts = own;
  integers_.clear();
  const auto put = [this](std::int64_t& value) { integers_.push_back(value); };
  visit_sums(facts, put);
  const std::size_t sums = integers_.size();
  visit_maxima(facts, put);
  work_ = world_.start_to_combine(integers_, sums);
}

StepFacts StepAgreement::take() {
  require(work_ != nullptr, "an agreement on a step that was not started");
  work_->wait(device::Stream::host);
  work_.reset();
  StepFacts facts;
  auto next = integers_.begin();
  const auto take = [&next](std::int64_t& value) { value = *next++; };
  visit_sums(facts, take);
  visit_maxima(facts, take);
  return facts;
}

}  // namespace llampi::train
