// SPDX-License-Identifier: Apache-2.0
// The part of a checkpoint that rank 0 makes, for a model that is far larger than this machine: a file with
// holes where its values would be.
#include "checkpoint/frame.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/tensor_list.hpp"
#include "support/checkpoint_sample.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;

/// Llama 3 70B.
std::vector<TensorInfo> tensors_of_70b() {
  std::vector<TensorInfo> tensors{{"model.embed_tokens.weight", {128256, 8192}}};
  for (int layer = 0; layer < 80; ++layer) {
    const auto add = [&](const char* name, const std::vector<std::int64_t>& shape) {
      tensors.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), shape});
    };
    add("input_layernorm", {8192});
    add("self_attn.q_proj", {8192, 8192});
    add("self_attn.k_proj", {1024, 8192});
    add("self_attn.v_proj", {1024, 8192});
    add("self_attn.o_proj", {8192, 8192});
    add("post_attention_layernorm", {8192});
    add("mlp.gate_proj", {28672, 8192});
    add("mlp.up_proj", {28672, 8192});
    add("mlp.down_proj", {8192, 28672});
  }
  tensors.push_back({"model.norm.weight", {8192}});
  tensors.push_back({"lm_head.weight", {128256, 8192}});
  return tensors;
}

/// A sum for each block, of whatever values.
std::vector<io::RangeSum> sums_of_all(const std::vector<TensorInfo>& tensors) {
  std::vector<io::RangeSum> sums;
  for (int dataset = 0; dataset < static_cast<int>(kRoles.size() * tensors.size()); ++dataset) {
    const std::int64_t elements =
        elements_of(tensors[static_cast<std::size_t>(dataset) % tensors.size()].shape);
    for (std::int64_t begin = 0; begin < elements; begin += io::kChecksumBlockElements)
      sums.push_back({dataset, 7, begin, std::min(io::kChecksumBlockElements, elements - begin)});
  }
  return sums;
}

TEST(Frame, Of70BillionParametersIsAFewMebibytesAndReadable) {
  const fs::path file = fs::temp_directory_path() / fmt::format("llampi-frame-{}.h5", ::getpid());
  CheckpointSummary about;
  about.state = sample_state();
  about.tensors = tensors_of_70b();
  Frame frame(about, {}, io::kChecksumBlockElements);
  frame.complete(about, sums_of_all(about.tensors));
  {
    const auto out = io::PosixFile::create(file);
    frame.write_to(out);
  }
  std::int64_t end = static_cast<std::int64_t>(fs::file_size(file));
  for (const auto& role : frame.places()) {
    for (std::size_t t = 0; t < role.size(); ++t)
      end = std::max(end, role[t].byte_of(elements_of(about.tensors[t].shape)));
  }
  fs::resize_file(file, static_cast<std::uintmax_t>(end));  // as whoever writes the last value does

  std::int64_t values = 0;
  for (const auto& tensor : about.tensors) values += 3 * 4 * elements_of(tensor.shape);
  EXPECT_EQ(values, 12 * std::int64_t{70'553'706'496});
  const auto others = static_cast<std::int64_t>(fs::file_size(file)) - values;
  const auto pages = static_cast<std::int64_t>(3 * about.tensors.size()) * FileSettings{}.alignment_bytes;
  EXPECT_LT(others, metadata_bytes(about.tensors, about.texts, io::kChecksumBlockElements) + pages);
  EXPECT_LT(metadata_bytes(about.tensors, about.texts, io::kChecksumBlockElements), 4 << 20);

  const auto summary = read_checkpoint_summary(file);  // compares names, shapes and checksums with theirs
  EXPECT_TRUE(summary.has_checksums);
  EXPECT_EQ(fields(summary.state), fields(sample_state()));
  EXPECT_EQ(summary.tensors.size(), about.tensors.size());
  fs::remove(file);
}

}  // namespace
}  // namespace llampi::test
