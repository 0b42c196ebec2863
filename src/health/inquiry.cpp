// SPDX-License-Identifier: Apache-2.0
#include "health/inquiry.hpp"

#include <algorithm>
#include <iterator>

namespace llampi::health {

const Question& Inquiry::ask(const std::string& reason, bool urgent, const std::set<int>& exited) {
  last_ = {rank_, last_.number + 1, urgent, reason, {exited.begin(), exited.end()}};
  told_.clear();
  return asks_.emplace(last_);
}

void Inquiry::end() {
  asks_.reset();
  told_.clear();
}

/// A known question that comes from another rank than before is answered again: the rank that passed it on first may be lost, and the
/// answers with it.
bool Inquiry::take(const Question& question, int from, std::vector<Account> known) {
  const bool is_known =
      question.monitor == last_.monitor && question.number == last_.number && from == asked_by_;
  if (is_known || question.monitor == rank_) return false;
  asked_by_ = from;
  unanswered_ = last_ = question;
  unsent_ = std::move(known);
  return true;
}

/// For this rank, if it asks, and for the one by which it was asked.
void Inquiry::add(std::vector<Account> accounts, double now) {
  for (const auto& account : accounts) {
    if (!asks_) break;
    auto& told = told_[account.rank];
    if (!account.report.empty() || told.account.report.empty()) told = {now, account};
  }
  if (asked_by_ < 0 || last_.monitor == rank_) return;
  std::move(accounts.begin(), accounts.end(), std::back_inserter(unsent_));
}

std::map<int, Account> Inquiry::accounts(double now) const {
  std::map<int, Account> result;
  for (const auto& [rank, told] : told_) {
    auto& account = result[rank] = told.account;
    const double since = std::max(0.0, now - told.at);
    account.silent_seconds += since;
    account.standing.stalled_seconds += since;
    account.standing.side_work_stalled_seconds += since;
  }
  return result;
}

}  // namespace llampi::health
