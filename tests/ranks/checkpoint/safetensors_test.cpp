// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/half.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/mpi_test.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Entry {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

/// A safetensors file, written as the specification says.
std::string file_of(const std::vector<Entry>& entries, std::size_t padding = 0) {
  json header{{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& entry : entries) {
    header[entry.name] = {{"dtype", entry.dtype},
                          {"shape", entry.shape},
                          {"data_offsets", {data.size(), data.size() + entry.data.size()}}};
    data += entry.data;
  }
  return file_of(header.dump() + std::string(padding, ' '), data);
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TensorPiece piece(int index, std::int64_t begin, std::vector<float>& values) {
  return {.tensor = index, .begin = begin, .model = tensor(values.data(), 1, std::ssize(values))};
}

class Safetensors : public ::testing::Test {
 protected:
  void write(const std::string& bytes) const { write_bytes(folder_.path() / "model.safetensors", bytes); }
  const fs::path& folder() const { return folder_.path(); }
  void load(const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
            bool tied_head = false) const {
    load_weights(test_world(), sample_device(), *open_safetensors(folder(), tied_head), tensors, pieces);
  }

  /// One tensor [elements] of the file, read whole.
  std::vector<float> read(const TensorInfo& tensor) const {
    std::vector<float> values(static_cast<std::size_t>(size_of_tensor(tensor)));
    load({tensor}, {piece(0, 0, values)});
    return values;
  }
  std::string refusal(const std::vector<TensorInfo>& tensors, bool tied_head = false) const {
    try {
      load(tensors, {}, tied_head);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(Safetensors, ReadsPiecesOfEveryDtype) {
  std::vector<float> f32;
  std::vector<std::uint16_t> bits;
  for (std::uint32_t i = 0; i < 6 * 7; ++i) {
    f32.push_back(std::bit_cast<float>(sample_bits(0, 0, i)));
    bits.push_back(static_cast<std::uint16_t>(sample_bits(1, 0, i)));
  }
  // An odd padding leaves the data unaligned, which the specification allows.
  for (const std::size_t padding : {0, 1, 2, 3}) {
    write(file_of({{"a", "F32", {6, 7}, bytes_of(f32)},
                   {"b", "BF16", {42}, bytes_of(bits)},
                   {"c", "F16", {7, 6}, bytes_of(bits)}},
                  padding));
    const std::vector<TensorInfo> tensors{{"c", {7, 6}}, {"a", {6, 7}}, {"b", {42}}};
    std::vector<float> c(10), a(5), a_rest(1), b(42);
    load(tensors, {piece(0, 9, c), piece(1, 20, a), piece(2, 0, b), piece(1, 41, a_rest), {.tensor = 1}});
    const auto same = [](float x, float y) {
      return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    };
    for (std::size_t i = 0; i < 10; ++i) EXPECT_TRUE(same(c[i], from_float16(bits[9 + i])));
    for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(same(a[i], f32[20 + i]));
    for (std::size_t i = 0; i < 42; ++i) EXPECT_TRUE(same(b[i], from_bfloat16(bits[i])));
    EXPECT_TRUE(same(a_rest[0], f32[41]));
  }
}

TEST_F(Safetensors, NarrowPiecesAreRounded) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 500; ++i) values.push_back(std::bit_cast<float>(sample_bits(0, 0, i)));
  write(file_of({{"a", "F32", {500}, bytes_of(values)}}));
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    std::vector<std::uint16_t> bits(490, 0);
    load({{"a", {500}}}, {{.tensor = 0, .begin = 7, .model = {bits.data(), dtype, 1, std::ssize(bits)}}});
    for (std::size_t i = 0; i < bits.size(); ++i) EXPECT_EQ(bits[i], bits_in(dtype, values[7 + i])) << i;
  }
}

TEST_F(Safetensors, NamesAndShapesAreStrict) {
  std::vector<Entry> entries{{"wrong", "F32", {2, 3}, std::string(24, 0)}};
  for (int i = 0; i < 7; ++i) entries.push_back({"extra" + std::to_string(i), "I64", {1}, std::string(8, 0)});
  write(file_of(entries));
  const auto message = refusal({{"wrong", {3, 2}}, {"absent", {1}}});
  EXPECT_THAT(message, AllOf(HasSubstr("model.safetensors"), HasSubstr("missing absent"),
                             HasSubstr("wrong ([2, 3] where the model has [3, 2])"),
                             HasSubstr("unexpected extra0, extra1, extra2, extra3, extra4 and 2 more"),
                             Not(HasSubstr("extra5"))));
}

TEST_F(Safetensors, TheHeadOfATiedModelIsIgnored) {
  write(file_of({{"a", "F32", {1}, std::string(4, 0)}, {"lm_head.weight", "F32", {1}, std::string(4, 0)}}));
  EXPECT_EQ(refusal({{"a", {1}}}, true), "nothing was thrown");
  EXPECT_THAT(refusal({{"a", {1}}}, false), HasSubstr("unexpected lm_head.weight"));
}

// transformers 5 computes with both matrices then.
TEST_F(Safetensors, AnotherHeadThanTheEmbeddingOfATiedModelIsRefused) {
  const std::string name = "model.embed_tokens.weight";
  const auto refusal_of = [&](std::int64_t rows, std::size_t changed) {
    std::vector<float> embedding(static_cast<std::size_t>(rows * 2), 0.5F), head = embedding;
    if (changed > 0) std::fill_n(head.end() - static_cast<std::ptrdiff_t>(changed), changed, 0.25F);
    write(file_of({{name, "F32", {rows, 2}, bytes_of(embedding)},
                   {"lm_head.weight", "F32", {rows, 2}, bytes_of(head)}}));
    return refusal({{name, {rows, 2}}}, true);
  };
  for (const std::int64_t rows : {1, 3, 40'000}) {
    EXPECT_EQ(refusal_of(rows, 0), "nothing was thrown") << rows;
    EXPECT_THAT(refusal_of(rows, static_cast<std::size_t>(rows)),
                HasSubstr("(tie_word_embeddings), but they differ"))
        << rows;
  }
}

TEST_F(Safetensors, AHeadThatEqualsTheEmbeddingMayHaveNumbersThatAreNone) {
  const std::vector<float> values{1, std::numeric_limits<float>::quiet_NaN()};
  const std::string name = "model.embed_tokens.weight";
  write(file_of(
      {{name, "F32", {1, 2}, bytes_of(values)}, {"lm_head.weight", "F32", {1, 2}, bytes_of(values)}}));
  EXPECT_EQ(refusal({{name, {1, 2}}}, true), "nothing was thrown");
}

TEST_F(Safetensors, TablesOfOlderFoldersAreIgnored) {
  write(file_of({{"a", "F32", {1}, std::string(4, 0)},
                 {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, std::string(8, 0)}}));
  EXPECT_EQ(refusal({{"a", {1}}}), "nothing was thrown");
}

TEST_F(Safetensors, OtherDtypesAreRefusedByName) {
  for (const auto& [dtype, elements] : std::vector<std::pair<std::string, std::int64_t>>{
           {"F64", 1}, {"C64", 1}, {"F4", 16}, {"F6_E2M3", 32}, {"F6_E3M2", 32}}) {
    const std::size_t bytes = dtype.starts_with("F6_") ? 24 : 8;
    write(file_of({{"a", dtype, {elements}, std::string(bytes, 0)}}));
    EXPECT_THROW(
        try {
          read({"a", {elements}});
        } catch (const UserError& error) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("a is " + dtype), HasSubstr("F32, BF16 and F16")));
          throw;
        },
        UserError);
  }
  write(file_of({{"a", "F4", {3}, std::string(1, 0)}}));
  EXPECT_THAT(refusal({{"a", {3}}}), HasSubstr("a does not fill whole bytes"));
}

TEST_F(Safetensors, FoldersWithoutTheFileAreRefused) {
  EXPECT_THAT(refusal({}), HasSubstr("there is no model.safetensors in"));
  EXPECT_THROW(open_safetensors(folder() / "absent", false), UserError);
  fs::create_directory(folder() / "model.safetensors");
  EXPECT_THAT(refusal({}), HasSubstr("not a file"));
}

TEST_F(Safetensors, MalformedHeadersAreRefused) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::vector<TensorInfo> tensors{{"a", {2}}};
  write(file_of(good, std::string(8, 0)));
  ASSERT_EQ(refusal(tensors), "nothing was thrown");

  for (
      const std::string header :
      {"",
       "[]",
       "{",
       "null",
       "{\"a\":1}",
       R"({"a":{}})",
       R"({"a":{"dtype":"F32","shape":[2]}})",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})",  // beyond the end
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",   // too few bytes
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})",
       R"({"a":{"dtype":"Q4_0","shape":[2],"data_offsets":[0,8]}})",  // unknown
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",   // bytes behind it
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",   // a gap before it
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})",
       R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
       R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",
       R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})",
       R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})",
       R"({"a":{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,8]}})",  // 2^63 elements
       R"({"a":{"dtype":"F32","shape":[9223372036854775809,2],"data_offsets":[0,8]}})",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"}) {
    write(file_of(header, std::string(8, 0)));
    EXPECT_THAT(refusal(tensors), HasSubstr("is not a whole safetensors file")) << header;
  }
  write(file_of(good + std::string(1, 0) + "anything", std::string(8, 0)));
  EXPECT_THAT(refusal(tensors), HasSubstr("the header holds a null byte"));
  write(file_of(R"({"a":{"dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,8]}})", std::string(8, 0)));
  EXPECT_THAT(refusal(tensors), HasSubstr("shape of a occurs twice"));
  write(file_of(R"({"a\u0000b":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", std::string(8, 0)));
  EXPECT_THAT(refusal(tensors), HasSubstr("a?b has 8 bytes where F32 [3] takes 12; fetch it again"));
  for (const std::uint64_t length :
       {std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} - 7, std::uint64_t{99'000'000}}) {
    write(std::string(reinterpret_cast<const char*>(&length), 8) + good + std::string(8, 0));
    EXPECT_THAT(refusal(tensors), HasSubstr("is not a whole safetensors file")) << length;
  }
}

TEST_F(Safetensors, FilesCutAnywhereAreRefused) {
  const std::string whole =
      file_of({{"a", "F32", {3}, std::string(12, 0)}, {"b", "F16", {1, 2}, std::string(4, 0)}});
  const std::vector<TensorInfo> tensors{{"a", {3}}, {"b", {1, 2}}};
  write(whole);
  ASSERT_EQ(refusal(tensors), "nothing was thrown");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    EXPECT_THAT(refusal(tensors), HasSubstr("is not a whole safetensors file")) << length;
  }
}

TEST_F(Safetensors, NoFlippedBitCrashes) {
  const std::string whole =
      file_of({{"a", "F32", {3}, std::string(12, 0)}, {"b", "F16", {1, 2}, std::string(4, 0)}});
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    write(damaged);
    std::vector<float> a(3), b(2);
    try {
      load({{"a", {3}}, {"b", {1, 2}}}, {piece(0, 0, a), piece(1, 0, b)});
    } catch (const UserError&) {  // anything else fails the test
    }
  }
}

}  // namespace
}  // namespace llampi::test
