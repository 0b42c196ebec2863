// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "health/messages.hpp"

namespace llampi::health {

/// The question of a monitor to all ranks, and their answers: kept here on the rank that asks, passed on by the others to the rank
/// from which the question came. Sends nothing.
class Inquiry {
 public:
  explicit Inquiry(int rank) : rank_(rank) {}

  // ---- of this rank ----
  /// Until end().
  const Question& ask(const std::string& reason, bool urgent, const std::set<int>& exited);
  void end();
  const std::optional<Question>& asks() const { return asks_; }
  std::map<int, Account> accounts(double now) const;

  // ---- of another ----
  /// @param known of the ranks below, which may not answer. @returns false if it has been taken before
  bool take(const Question& question, int from, std::vector<Account> known);
  /// The latest, once.
  std::optional<Question> take_unanswered() { return std::exchange(unanswered_, std::nullopt); }
  int asked_by() const { return asked_by_; }
  /// What is to go to asked_by().
  const std::vector<Account>& unsent() const { return unsent_; }
  void set_sent() { unsent_.clear(); }

  void add(std::vector<Account> accounts, double now);

 private:
  struct Told {
    double at = 0;
    Account account;
  };

  const int rank_;
  std::optional<Question> asks_;  ///< this rank, all others
  std::map<int, Told> told_;      ///< to this rank, which asks
  Question last_;                 ///< of any rank
  std::optional<Question> unanswered_;
  int asked_by_ = -1;  ///< the rank from which the question came
  std::vector<Account> unsent_;
};

}  // namespace llampi::health
