// SPDX-License-Identifier: Apache-2.0
// The loss of a Llama over a token file, which `llampi tokenize` has written.
//
//   [mpirun -n RANKS] evaluate WEIGHTS TOKENS.h5 SEQ_LEN      WEIGHTS: a Hugging Face folder or a checkpoint
#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "llampi/comm/comm.hpp"
#include "llampi/train/evaluate.hpp"

using namespace llampi;

void run(comm::World& world, const char* weights, const char* tokens, std::int64_t seq_len) {
  const Log log;  // silent; with a function it is given what is worth telling
  const auto evaluation = train::evaluate(world, weights, tokens, {.seq_len = seq_len}, log);
  if (world.rank() == 0) fmt::print("loss {:.6f} over {} tokens\n", evaluation.loss, evaluation.tokens);
}

int main(int argc, char** argv) {
  const auto world = comm::World::create();
  std::int64_t seq_len = 0;
  const std::string_view last = argc == 4 ? argv[3] : "";
  const auto [end, failure] = std::from_chars(last.data(), last.data() + last.size(), seq_len);
  if (failure != std::errc() || end != last.data() + last.size() || seq_len < 1) {
    if (world->rank() == 0)
      fmt::print(stderr, "usage: [mpirun -n RANKS] evaluate WEIGHTS TOKENS.h5 SEQ_LEN\n");
    return 2;
  }
  try {
    run(*world, argv[1], argv[2], seq_len);
  } catch (const UserError& error) {  // one sentence, the same on all ranks
    if (world->rank() == 0) fmt::print(stderr, "evaluate: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", world->rank(), error.what());
    world->abort(1);
  }
}
