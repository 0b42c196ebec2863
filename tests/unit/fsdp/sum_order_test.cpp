// SPDX-License-Identifier: Apache-2.0
// The order in which gradients are added, as text: "((0+1)+2)".
#include "llampi/fsdp/sum_order.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "fsdp/program/partial_sums.hpp"
#include "llampi/core/error.hpp"
#include "unit/fsdp/sum_text.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

/// What PartialSums makes of terms in this order, and the most buffers that it used.
std::pair<std::string, std::size_t> counted(const std::vector<std::string>& terms, bool added) {
  PartialSums sums;
  std::map<int, std::string> buffers;
  std::size_t most = 0;
  const auto carry_out = [&](const std::vector<PartialSums::Addition>& additions) {
    for (const auto& [from, to] : additions) {
      buffers.at(to) = joined(buffers.at(to), buffers.at(from));
      buffers.erase(from);
    }
  };
  for (const auto& text : terms) {
    const auto term = added ? sums.begin_added_term() : PartialSums::Term{sums.begin_term()};
    if (term.adds) {
      buffers.at(term.buffer) = joined(buffers.at(term.buffer), text);
    } else {
      EXPECT_TRUE(buffers.emplace(term.buffer, text).second) << "a buffer that holds a sum";
    }
    most = std::max(most, buffers.size());
    carry_out(sums.end_term(term));
  }
  carry_out(sums.end());
  EXPECT_EQ(buffers.size(), 1U);
  return {buffers.at(0), most};
}

TEST(PartialSums, AddInTheOrderOfTheTree) {
  EXPECT_EQ(tree_of(numbers(7)), "(((0+1)+(2+3))+((4+5)+6))");
  for (int count = 1; count <= 40; ++count) {
    const auto terms = numbers(count);
    for (const bool added : {false, true}) {
      const auto [text, buffers] = counted(terms, added);
      EXPECT_EQ(text, tree_of(terms));
      EXPECT_LE(buffers, static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(count))));
      if (added && count <= 2) {
        EXPECT_EQ(buffers, 1U);
      }
    }
  }
}

DeviceMesh mesh_of(int shards, int replicas) {
  DeviceMesh mesh;
  for (int p = 0; p < replicas; ++p) {
    auto& group = mesh.shards.emplace_back();
    for (int s = 0; s < shards; ++s) group.push_back(p * shards + s);
  }
  return mesh;
}

/// As the engine adds them: over micro-batches of a subtree, ranks, replicas, subtrees, in the order that the shape has.
std::string added(const StepShape& step) {
  const auto mesh = mesh_of(step.shards, step.replicas);
  const int together = micro_batches_of_subtree(step.per_rank);
  const auto number = [&](int replica, int shard, int micro_batch) {
    return std::to_string(micro_batch_number(step, mesh, replica * step.shards + shard, micro_batch));
  };
  std::vector<std::string> subtrees;
  for (int first = 0; first < step.per_rank; first += together) {
    std::vector<std::string> of_replicas, of_micro_batches;
    for (int p = 0; p < step.replicas; ++p) {
      std::vector<std::string> inner;
      if (step.unsharded) {
        for (int s = 0; s < step.shards; ++s) {
          std::vector<std::string> own;
          for (int m = first; m < first + together; ++m) own.push_back(number(p, s, m));
          inner.push_back(tree_of(own));
        }
      } else {
        for (int m = first; m < first + together; ++m) {
          std::vector<std::string> of_ranks;
          for (int s = 0; s < step.shards; ++s) of_ranks.push_back(number(p, s, m));
          inner.push_back(tree_of(of_ranks));
        }
      }
      of_replicas.push_back(tree_of(inner));
    }
    // Where a unit has one shard, replicas reduce each micro-batch.
    for (int m = first; !step.unsharded && step.shards == 1 && m < first + together; ++m) {
      std::vector<std::string> of_ranks;
      for (int p = 0; p < step.replicas; ++p) of_ranks.push_back(number(p, 0, m));
      of_micro_batches.push_back(tree_of(of_ranks));
    }
    subtrees.push_back(tree_of(of_micro_batches.empty() ? of_replicas : of_micro_batches));
  }
  return tree_of(subtrees);
}

TEST(SumOrder, IsOneTreeWhoeverHasWhichMicroBatch) {
  for (const int micro_batches : {8, 16, 24, 40, 48, 56}) {
    const std::string expected = tree_of(numbers(micro_batches));
    for (const int shards : {1, 2, 4, 8}) {
      for (const int replicas : {1, 2, 4, 8}) {
        if (micro_batches % (shards * replicas) != 0) continue;
        for (const bool unsharded : {false, true}) {
          EXPECT_EQ(added({.per_rank = micro_batches / (shards * replicas),
                           .shards = shards,
                           .replicas = replicas,
                           .unsharded = unsharded,
                           .order = SumOrder::tree}),
                    expected)
              << shards << " shards, " << replicas << " replicas, unsharded " << unsharded;
        }
      }
    }
  }
}

TEST(SumOrder, AnyLetsRanksTakeTurns) {
  const StepShape step{.per_rank = 3, .shards = 2, .replicas = 2};
  for (int rank = 0; rank < 4; ++rank) {
    for (int m = 0; m < 3; ++m) {
      EXPECT_EQ(micro_batch_number(step, mesh_of(2, 2), rank, m), 4 * m + rank);
    }
  }
}

std::string refusal(const StepShape& step, const Precision& precision, comm::Backend backend,
                    comm::Reduction reduction = comm::Reduction::tree) {
  try {
    check_sum_order(step, precision, backend, reduction);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(SumOrder, IsRefusedWhereItCannotBeHad) {
  StepShape step{.shards = 4, .replicas = 2, .order = SumOrder::tree};
  EXPECT_EQ(refusal(step, {}, comm::Backend::mpi), "");
  EXPECT_EQ(refusal(step, {}, comm::Backend::nccl), "");
  EXPECT_EQ(
      refusal(step, {}, comm::Backend::nccl, comm::Reduction::nccl),
      "sum_order = tree is not possible with NCCL's own reduction, whose order is unspecified; use reduction = tree, or "
      "sum_order = any");
  EXPECT_EQ(refusal({.order = SumOrder::tree}, {}, comm::Backend::nccl, comm::Reduction::nccl), "");
  EXPECT_EQ(
      refusal(step, {.gradient_shard = DType::bfloat16}, comm::Backend::mpi),
      "sum_order = tree needs gradients that are summed in float32; use precision.gradient_shard = float32, or sum_order = any");
  step.replicas = 3;
  EXPECT_EQ(
      refusal(step, {}, comm::Backend::mpi),
      "sum_order = tree needs a number of ranks that is a power of two, and there are 12; start 8 or 16 ranks, or "
      "use sum_order = any");
  const auto on_nodes = [](const std::vector<int>& node_of_rank) {
    const auto mesh = make_device_mesh(Strategy::full_shard, node_of_rank, 0);
    return refusal({.shards = static_cast<int>(node_of_rank.size()),
                    .order = SumOrder::tree,
                    .sums_follow_placement = mesh.sums_follow_placement,
                    .nodes = mesh.nodes},
                   {}, comm::Backend::mpi);
  };
  EXPECT_EQ(
      on_nodes({0, 0, 0, 1}),
      "sum_order = tree is not possible with this placement: sums are formed inside nodes first, then node by node, "
      "and the nodes have 3 (ranks 0-2), 1 (rank 3); start the same power of two of consecutive ranks on each node "
      "(mpirun --map-by slot, srun --distribution=block), or use sum_order = any");
  EXPECT_EQ(on_nodes({0, 0, 1, 1, 2, 2, 2, 2}), "");
  EXPECT_NE(on_nodes({0, 0, 0, 0, 1, 1, 2, 2}), "");
  EXPECT_NE(on_nodes({0, 0, 1, 1, 1, 1, 2, 2}), "");
  step.order = SumOrder::any;
  EXPECT_EQ(refusal(step, {.reduce = DType::bfloat16}, comm::Backend::nccl), "");
}

}  // namespace
}  // namespace llampi::test
