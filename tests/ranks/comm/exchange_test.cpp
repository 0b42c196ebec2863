// SPDX-License-Identifier: Apache-2.0
// Values between ranks, and what rank 0 does for all.
#include "llampi/comm/exchange.hpp"

#include <gtest/gtest.h>

#include <optional>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/config_error.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace comm;

struct Inner {
  std::int64_t count = 0;
  auto members() { return std::tie(count); }
};

struct Mixed {
  int number = 0;
  std::string text;
  std::filesystem::path path;
  std::vector<std::int32_t> values;
  std::vector<std::string> texts;
  std::optional<double> maybe;
  Inner inner;
  auto members() { return std::tie(number, text, path, values, texts, maybe, inner); }
};

Mixed of_rank(int rank) {
  return {rank,        std::string("a\0b\n", 4) + std::to_string(rank),
          "x/y",       std::vector<std::int32_t>(static_cast<std::size_t>(rank), 7),
          {"", "two"}, rank % 2 == 0 ? std::optional(0.5) : std::nullopt,
          {rank * 10}};
}

void expect_equal(const Mixed& a, const Mixed& b) {
  EXPECT_EQ(a.number, b.number);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.path, b.path);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.texts, b.texts);
  EXPECT_EQ(a.maybe, b.maybe);
  EXPECT_EQ(a.inner.count, b.inner.count);
}

TEST(Exchange, EveryRankHasEverybodysValue) {
  World& world = test_world();
  const auto all = all_gather_value(world, of_rank(world.rank()));
  ASSERT_EQ(std::ssize(all), world.size());
  for (int rank = 0; rank < world.size(); ++rank)
    expect_equal(all[static_cast<std::size_t>(rank)], of_rank(rank));
  expect_equal(broadcast_value(world, of_rank(world.rank() + 5)), of_rank(5));
}

TEST(Exchange, RankZeroHasAllValues) {
  World& world = test_world();
  const auto all = gather_values(world, std::vector<int>(2, world.rank()));
  EXPECT_EQ(std::ssize(all), world.rank() == 0 ? 2 * world.size() : 0);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int>(i / 2));
}

TEST(Exchange, ATornMessageIsAnError) {
  const std::string bytes = packed(of_rank(3));
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(unpacked<Mixed>(bytes.substr(0, length)), Error) << length;
}

struct Votes {
  std::int64_t valid = 0;
  Inner inner;
  auto members() { return std::tie(valid, inner); }
};

TEST(Exchange, MembersAreAddedUp) {
  World& world = test_world();
  Votes votes{1, {world.rank()}}, largest = votes;
  sum_members(world, votes);
  EXPECT_EQ(votes.valid, world.size());
  EXPECT_EQ(votes.inner.count, world.size() * (world.size() - 1) / 2);
  max_members(world, largest);
  EXPECT_EQ(largest.inner.count, world.size() - 1);
}

TEST(Exchange, TheLargestOfAllRanksIsFound) {
  const int last = test_world().size() - 1;
  EXPECT_EQ(max_over_ranks(test_world(), std::int64_t{test_rank() - 5}), last - 5);
  EXPECT_EQ(max_over_ranks(test_world(), -0.5 * test_rank()), 0);
  EXPECT_TRUE(on_any_rank(test_world(), test_rank() == last));
  EXPECT_FALSE(on_any_rank(test_world(), test_rank() > last));
}

TEST(RankZero, FindsOutForAll) {
  World& world = test_world();
  int calls = 0;
  expect_equal(from_rank_0(world, [&] { return ++calls, of_rank(2); }), of_rank(2));
  EXPECT_TRUE(from_rank_0(world, [] { return true; }));
  on_rank_0(world, [&] { ++calls; });
  EXPECT_EQ(calls, world.rank() == 0 ? 2 : 0);
}

TEST(RankZero, FailsForAll) {
  World& world = test_world();
  const auto message = [&](const auto& work) -> std::string {
    try {
      on_rank_0(world, work);
    } catch (const ConfigError& error) {
      return "config " + error.parts().field + ": " + error.what();
    } catch (const UserError& error) {
      return std::string("user: ") + error.what();
    } catch (const CommonError& error) {
      return std::string("common: ") + error.what();
    }
    return "";
  };
  EXPECT_EQ(message([] { throw UserError("no such file"); }), "user: no such file");
  EXPECT_EQ(message([] { throw ConfigError({.field = "a", .value = "1", .problem = "is odd"}); }),
            "config a: a = 1 is odd");
  const std::string host = from_rank_0(world, [&] { return world.topology().host; });
  EXPECT_EQ(message([] { throw std::runtime_error("odd"); }),
            world.size() == 1 ? "common: odd" : "common: rank 0 on " + host + ": odd");
}

TEST(RankZero, AgreementKeepsWhatAnErrorIsAbout) {
  World& world = test_world();
  try {
    agree(world, [&] {
      if (world.rank() == world.size() - 1) throw ConfigError({.field = "a", .problem = "is odd"});
    });
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.parts().field, "a");
    EXPECT_EQ(error.parts().where.empty(), world.size() == 1);
  }
}

}  // namespace
}  // namespace llampi::test
