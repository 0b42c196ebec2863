// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_list.hpp"

#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TensorList, SaysWhatMayTieTheHead) {
  const TensorInfo embedding{"model.embed_tokens.weight", {4, 2}, false},
      head{"lm_head.weight", {4, 2}, false}, norm{"model.norm.weight", {2}, false};
  const auto refusal = [&](const std::vector<TensorInfo>& found) {
    return user_error([&] { require_same_tensors("hf", {embedding, norm, head}, found); });
  };
  EXPECT_EQ(
      refusal({embedding, norm}),
      "hf does not fit the model: missing lm_head.weight; use weights and a model that belong together, or, if "
      "its head is its embedding, set tie_word_embeddings = true in config.json");
  EXPECT_THAT(refusal({embedding}), Not(HasSubstr("tie_word_embeddings")));
  EXPECT_THAT(refusal({head, norm}), Not(HasSubstr("tie_word_embeddings")));
}

}  // namespace
}  // namespace llampi::test
