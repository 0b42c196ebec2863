// SPDX-License-Identifier: Apache-2.0
#include "comm/cores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>

#include "llampi/core/split.hpp"

namespace llampi::comm {
namespace {

using Cores = std::vector<Core>;
using Parts = std::vector<Cpus>;

/// What of the cores is in `usable`.
Cores within(const Cores& cores, const Cpus& usable) {
  Cores left;
  for (const Core& core : cores) {
    Core part{common(core.cpus, usable), core.domain};
    if (!part.cpus.empty()) left.push_back(std::move(part));
  }
  return left;
}

/// [first, last) of the cores.
Cpus joined(const Cores& cores, std::size_t first, std::size_t last) {
  Cpus all;
  for (std::size_t i = first; i < last; ++i)
    all.insert(all.end(), cores[i].cpus.begin(), cores[i].cpus.end());
  std::sort(all.begin(), all.end());
  return all;
}

/// As many cores to each of them as to the others, one more or less.
Parts equal_parts(const Cores& cores, std::size_t ranks) {
  Parts parts;
  for (std::size_t r = 0; r < ranks; ++r)
    parts.push_back(joined(cores, r * cores.size() / ranks, (r + 1) * cores.size() / ranks));
  return parts;
}

std::vector<Cores> by_domain(const Cores& cores) {
  std::vector<Cores> domains;
  for (const Core& core : cores) {
    const auto found = std::find_if(domains.begin(), domains.end(),
                                    [&](const Cores& d) { return d.front().domain == core.domain; });
    if (found == domains.end()) {
      domains.push_back({core});
    } else {
      found->push_back(core);
    }
  }
  return domains;
}

/// How many ranks each domain has: the next goes where it finds the most cores for itself.
std::vector<std::size_t> ranks_of_domains(const std::vector<Cores>& domains, std::size_t ranks) {
  std::vector<std::size_t> counts(domains.size());
  for (std::size_t r = 0; r < ranks; ++r) {
    std::size_t best = 0;
    for (std::size_t d = 1; d < domains.size(); ++d) {
      if (domains[d].size() * (counts[best] + 1) > domains[best].size() * (counts[d] + 1)) best = d;
    }
    ++counts[best];
  }
  return counts;
}

/// Divides cores so that ranks share a NUMA domain only with ranks that lie wholly in it.
Parts domain_parts(const Cores& cores, std::size_t ranks) {
  const auto domains = by_domain(cores);
  Parts parts;
  if (ranks < domains.size()) {
    for (std::size_t r = 0; r < ranks; ++r) {
      Cores some;
      for (std::size_t d = r * domains.size() / ranks; d < (r + 1) * domains.size() / ranks; ++d)
        some.insert(some.end(), domains[d].begin(), domains[d].end());
      parts.push_back(joined(some, 0, some.size()));
    }
    return parts;
  }
  const auto counts = ranks_of_domains(domains, ranks);
  for (std::size_t d = 0; d < domains.size(); ++d) {
    auto some = equal_parts(domains[d], counts[d]);
    std::move(some.begin(), some.end(), std::back_inserter(parts));
  }
  return parts;
}

Cores single_cpus(const Cores& cores) {
  Cores single;
  for (const Core& core : cores) {
    for (const int cpu : core.cpus) single.push_back({{cpu}, core.domain});
  }
  return single;
}

bool hold(const Parts& parts, const std::vector<RankOnNode>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (parts[r].empty() || parts[r].size() < static_cast<std::size_t>(ranks[r].threads)) return false;
  }
  return true;
}

std::optional<Parts> parts_for(const Cores& cores, const std::vector<RankOnNode>& ranks) {
  if (cores.empty()) return std::nullopt;
  for (const Parts& parts : {domain_parts(cores, ranks.size()), equal_parts(cores, ranks.size()),
                             equal_parts(single_cpus(cores), ranks.size())}) {
    if (hold(parts, ranks)) return parts;
  }
  return std::nullopt;
}

/// Gives each rank cores near its GPU. None if some rank has too few there, or if the sets near different GPUs overlap.
std::optional<Parts> parts_near_gpus(const Cores& cores, const std::vector<RankOnNode>& ranks) {
  std::map<Cpus, std::vector<std::size_t>> groups;
  for (std::size_t r = 0; r < ranks.size(); ++r) groups[common(ranks[r].near, ranks[r].usable)].push_back(r);
  Parts parts(ranks.size());
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    const Cpus& near = group->first;
    const auto& members = group->second;
    const bool shared = std::any_of(std::next(group), groups.end(),
                                    [&](const auto& other) { return overlap(near, other.first); });
    if (near.empty() || shared) return std::nullopt;
    std::vector<RankOnNode> some;
    for (const std::size_t r : members) some.push_back(ranks[r]);
    const auto found = parts_for(within(cores, near), some);
    if (!found) return std::nullopt;
    for (std::size_t i = 0; i < members.size(); ++i) parts[members[i]] = (*found)[i];
  }
  return parts;
}

Sharing sharing_of(const std::vector<RankOnNode>& ranks, const std::vector<int>& members) {
  const RankOnNode& first = ranks[static_cast<std::size_t>(members.front())];
  std::size_t threads = 0;
  for (const RankOnNode& rank : ranks) {
    if (rank.usable != first.usable && overlap(rank.usable, first.usable)) return Sharing::overlaps;
  }
  bool by_openmp = false, has_gpu = false;
  for (const int member : members) {
    const RankOnNode& rank = ranks[static_cast<std::size_t>(member)];
    threads += static_cast<std::size_t>(rank.threads);
    by_openmp = by_openmp || rank.by_openmp;
    has_gpu = has_gpu || rank.has_gpu;
  }
  if (threads > first.usable.size()) return Sharing::crowded;
  if (by_openmp) return Sharing::openmp;
  return members.size() > 1 || has_gpu ? Sharing::divide : Sharing::alone;
}

}  // namespace

std::string format_cpus(const Cpus& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (end > i + 1) text += fmt::format("-{}", cpus[end - 1]);
    i = end;
  }
  return text;
}

Cpus parse_cpus(const std::string& text) {
  Cpus cpus;
  for (const auto& range : split(text, ',')) {
    const auto dash = range.find('-');
    const int first = std::stoi(range);
    const int last = dash == std::string::npos ? first : std::stoi(range.substr(dash + 1));
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

Cpus common(const Cpus& a, const Cpus& b) {
  Cpus both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

bool overlap(const Cpus& a, const Cpus& b) { return !common(a, b).empty(); }

std::vector<SharedCpus> shared_cpus(const std::vector<RankOnNode>& ranks) {
  std::vector<SharedCpus> groups;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const SharedCpus& group) {
      return ranks[static_cast<std::size_t>(group.ranks.front())].usable == ranks[r].usable;
    });
    if (found == groups.end()) {
      groups.push_back({{static_cast<int>(r)}});
    } else {
      found->ranks.push_back(static_cast<int>(r));
    }
  }
  for (auto& group : groups) group.sharing = sharing_of(ranks, group.ranks);
  return groups;
}

std::optional<Division> divide_cores(const std::vector<Core>& cores, const std::vector<RankOnNode>& ranks) {
  const Cores usable = within(cores, ranks.front().usable);
  if (auto parts = parts_near_gpus(usable, ranks)) return Division{std::move(*parts), true};
  if (auto parts = parts_for(usable, ranks)) return Division{std::move(*parts), false};
  return std::nullopt;
}

}  // namespace llampi::comm
