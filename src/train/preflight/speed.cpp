// SPDX-License-Identifier: Apache-2.0
#include "train/preflight/speed.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "llampi/core/text.hpp"
#include "llampi/fsdp/added_work.hpp"

namespace llampi::train {
namespace {

/// Empty if none is slow.
std::string slow_links_text(const Checklist& list, const std::vector<selfcheck::Link>& links, const char* of,
                            bool are_nodes) {
  const auto slow = selfcheck::find_slow_links(links);
  const auto& node_of_rank = list.world().topology().node_of_rank;
  const auto name = [&](int end) {
    if (!are_nodes) return list.on_host(end);
    const auto first = std::find(node_of_rank.begin(), node_of_rank.end(), end) - node_of_rank.begin();
    return fmt::format("node {}", list.host(static_cast<int>(first)));
  };
  const auto fastest = [&](int end) {
    double bandwidth = 0;
    for (const auto& link : links) {
      if (link.a == end || link.b == end) bandwidth = std::max(bandwidth, link.bytes_per_second);
    }
    return bandwidth;
  };
  std::vector<std::string> parts;
  for (const int end : slow.ends)
    parts.push_back(
        fmt::format("all links of {} are slow ({} at most)", name(end), format_rate(fastest(end))));
  for (const auto& link : slow.links) {
    parts.push_back(fmt::format("the link between {} and {} is slow ({})", name(link.a), name(link.b),
                                format_rate(link.bytes_per_second)));
  }
  if (parts.empty()) return {};
  constexpr std::size_t kNamed = 8;
  const auto more =
      parts.size() > kNamed ? fmt::format(" and {} more", parts.size() - kNamed) : std::string();
  parts.resize(std::min(parts.size(), kNamed));
  return fmt::format("{}{}, where the median between {} is {}", fmt::join(parts, ", "), more, of,
                     format_rate(slow.median));
}

}  // namespace

void check_products(Checklist& list, comm::Compute& compute, DType dtype, std::vector<double>& seconds) {
  seconds = selfcheck::time_products(list.world(), compute, dtype);
  const double usual = selfcheck::median(seconds);
  const auto slow = selfcheck::slow_ranks(seconds);
  if (slow.empty()) {
    list.pass("products", fmt::format("a fixed matrix product takes {:.2f} ms, at most {:.2f} ms on any rank",
                                      1e3 * usual, 1e3 * *std::max_element(seconds.begin(), seconds.end())));
    return;
  }
  std::vector<std::string> factors;
  for (const int rank : slow)
    factors.push_back(fmt::format("{:.2f}", seconds[static_cast<std::size_t>(rank)] / usual));
  list.fail("products",
            fmt::format("{} {} slow: a fixed matrix product takes {} times the {:.2f} ms {}; look there for "
                        "other processes, fewer cores or threads, a lower clock or another kind of device",
                        list.on_hosts(slow), slow.size() == 1 ? "is" : "are", fmt::join(factors, ", "),
                        1e3 * usual, seconds.size() == 2 ? "of the other rank" : "that is the median"));
}

void check_links(Checklist& list, comm::Compute& compute, selfcheck::LinkSpeeds& links,
                 const std::function<void()>& progress) {
  comm::World& world = list.world();
  if (world.size() == 1) return list.skip("links", "there is only one rank");
  links = selfcheck::measure_links(world, compute, progress);
  std::vector<std::string> slow, figures;
  for (const auto& [of, are_nodes] :
       {std::pair(&links.between_nodes, true), std::pair(&links.inside_nodes, false)}) {
    if (of->empty()) continue;
    const char* where = are_nodes ? "nodes" : "ranks of a node";
    if (auto text = slow_links_text(list, *of, where, are_nodes); !text.empty())
      slow.push_back(std::move(text));
    figures.push_back(fmt::format("{} between {}{} {}", count(std::ssize(*of), "link"), where,
                                  of->size() == 1 ? ":" : ", median",
                                  format_rate(selfcheck::find_slow_links(*of).median)));
  }
  if (slow.empty()) return list.pass("links", fmt::format("{}", fmt::join(figures, "; ")));
  list.fail("links",
            fmt::format("{}; look at cables, ports and network settings there", fmt::join(slow, "; ")));
}

void check_copies(Checklist& list, const std::vector<double>& bytes_per_second) {
  const double usual = selfcheck::median(bytes_per_second);
  const auto slowest = std::min_element(bytes_per_second.begin(), bytes_per_second.end());
  const std::string found = fmt::format("{} in each direction at once", format_rate(*slowest));
  if (*slowest < selfcheck::kSlowLink * usual) {
    const auto rank = static_cast<int>(slowest - bytes_per_second.begin());
    return list.fail(
        "copies",
        fmt::format(
            "{} and its GPU exchange only {}, where the median is {}; look at the PCIe link there, and "
            "at the cores and memory that the rank is bound to",
            list.on_host(rank), found, format_rate(usual)));
  }
  // An H100's choices were the fastest ones down to this part of what is counted on.
  constexpr double kEnough = 0.85;
  const std::string counted =
      *slowest < kEnough * fsdp::kHostBytesPerSecond
          ? fmt::format(
                ", and activation.checkpointing = auto counts on {}: what it keeps in host memory may be waited for",
                format_rate(fsdp::kHostBytesPerSecond))
          : "";
  list.pass("copies", fmt::format("a GPU and its host exchange at least {}{}", found, counted));
}

}  // namespace llampi::train
