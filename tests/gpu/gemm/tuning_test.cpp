// SPDX-License-Identifier: Apache-2.0
// Which algorithm Gemm takes when it may try them, or remembers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <vector>

#include "device/cuda/checksum.hpp"
#include "device/cuda/gemm.hpp"
#include "emulator/seams/products.hpp"
#include "emulator/streams.hpp"
#include "llampi/core/error.hpp"

namespace llampi::test {
namespace {

using namespace device;
using namespace device::cuda;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

/// Device memory, which the host sees here.
template <class T>
class DeviceVector {
 public:
  DeviceVector(std::size_t size, T value) : size_(size) {
    void* data = nullptr;
    if (cudaMalloc(&data, size * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
    std::fill_n(data_, size, value);
  }
  ~DeviceVector() { cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::vector<T> values() const { return {data_, data_ + size_}; }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

class ProductTuning : public ::testing::Test {
 protected:
  ~ProductTuning() override { emulator::set_usual_algorithms(); }

  /// Seconds of the algorithm that runs in the end: of y (+)= x w^T, [4, 8] = [4, 16] [8, 16]^T.
  double seconds_of(Gemm& gemm, Accumulate accumulate = Accumulate::no, DType dtype = DType::float32) {
    emulator::take_products();
    gemm.run(
        {.m = 4, .n = 8, .k = 16, .b = Transpose::yes, .in = dtype, .out = dtype, .accumulate = accumulate},
        {x_.data(), w_.data(), y_.data()}, {workspace_.data(), DType::int32, 1, 1 << 10}, nullptr);
    emulator::run_all();
    return emulator::take_products().back().algorithm.seconds;
  }

  /// That runs in the end: y = x w^T + residual, which lies elsewhere.
  emulator::Product adding_elsewhere(Gemm& gemm) {
    emulator::take_products();
    gemm.run({.m = 4, .n = 8, .k = 16, .b = Transpose::yes, .in = DType::float32, .out = DType::float32},
             {x_.data(), w_.data(), y_.data(), residual_.data()},
             {workspace_.data(), DType::int32, 1, 1 << 10}, nullptr);
    emulator::run_all();
    EXPECT_EQ(y_.values(), std::vector<float>(32, 18.0F));
    return emulator::take_products().back();
  }

  DeviceVector<float> x_{64, 1.0F}, w_{128, 1.0F}, y_{32, 0.0F}, residual_{32, 2.0F};
  DeviceVector<std::byte> workspace_{1 << 12, std::byte{0}};
};

TEST_F(ProductTuning, TakesTheFastestWhileItMeasures) {
  emulator::set_algorithms({{.seconds = 3}, {.runs = false, .seconds = 1}, {.seconds = 2}, {.seconds = 4}});
  Gemm gemm(true, false, "a GPU");
  EXPECT_EQ(gemm.key(), "a GPU, emulated products");
  EXPECT_EQ(seconds_of(gemm), 3);  // the library's first
  gemm.adopt({});
  gemm.measure(true);
  EXPECT_EQ(seconds_of(gemm), 2);
  EXPECT_EQ(y_.values(), std::vector<float>(32, 16.0F));
  gemm.measure(false);
  EXPECT_EQ(seconds_of(gemm), 2) << "it is chosen once";
  EXPECT_EQ(seconds_of(gemm, Accumulate::yes), 3) << "another product";
  EXPECT_EQ(y_.values(), std::vector<float>(32, 32.0F));
}

// At first the clock is higher than later: what was timed then cannot be compared with what was timed afterwards.
TEST_F(ProductTuning, IsNotMisledByTheFirstRuns) {
  const emulator::Algorithm best{.seconds = 1.30e-3, .seconds_at_first = 0.75e-3};
  for (const auto& slower : {emulator::Algorithm{.seconds = 1.60e-3, .seconds_at_first = 0.96e-3},
                             emulator::Algorithm{.seconds = 2.00e-3, .seconds_at_first = 1.25e-3}}) {
    emulator::set_algorithms({best, slower});
    Gemm gemm(true, false);
    gemm.measure(true);
    EXPECT_EQ(seconds_of(gemm), best.seconds) << slower.seconds;
  }
}

TEST_F(ProductTuning, TakesNoneWhoseBitsDiffer) {
  emulator::set_algorithms({{.seconds = 3}, {.seconds = 1, .repeats_its_bits = false}, {.seconds = 2}});
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    Gemm same_bits(true, false), any_bits(false, false);
    same_bits.measure(true);
    any_bits.measure(true);
    EXPECT_EQ(seconds_of(same_bits, accumulate), 2);
    EXPECT_EQ(seconds_of(any_bits, accumulate), 1);
  }
}

// Whatever the order of sums: results of 16 bits are not added to as parts come.
TEST_F(ProductTuning, TakesNoneWhoseBitsDifferWhereNothingIsAddedInAnyOrder) {
  emulator::set_algorithms({{.seconds = 3}, {.seconds = 1, .repeats_its_bits = false}, {.seconds = 2}});
  for (const bool deterministic : {true, false}) {
    Gemm gemm(deterministic, false);
    gemm.measure(true);
    EXPECT_EQ(seconds_of(gemm, Accumulate::no, DType::bfloat16), 2);
    EXPECT_THAT(gemm.warnings(), IsEmpty());
  }
  emulator::set_algorithms({{.seconds = 2, .repeats_its_bits = false}});
  Gemm gemm(true, false);
  gemm.measure(true);
  EXPECT_EQ(seconds_of(gemm), 2);
  EXPECT_THAT(gemm.warnings(), ElementsAre(HasSubstr("no algorithm gave the same bits twice: float32 16x8")));
}

TEST_F(ProductTuning, LeavesOutWhatFails) {
  emulator::set_algorithms({{.seconds = 1, .fails = true}, {.seconds = 3}, {.seconds = 2}});
  Gemm gemm(true, false);
  gemm.measure(true);
  EXPECT_EQ(seconds_of(gemm), 2);
  emulator::set_algorithms({{.seconds = 1, .fails = true}});
  Gemm none(true, false);
  none.measure(true);
  EXPECT_THROW(seconds_of(none), Error);
}

TEST_F(ProductTuning, RemembersWhatItChose) {
  emulator::set_algorithms({{.seconds = 3}, {.seconds = 2}});
  Gemm gemm(true, false);
  gemm.measure(true);
  seconds_of(gemm);
  const AlgorithmChoices choices = gemm.choices();
  ASSERT_THAT(choices, ElementsAre(Pair(HasSubstr("float32 16x8/16^T * float32 16x4/16 -> float32 8x4/8"),
                                        HasSubstr("seconds 2"))));
  Gemm again(true, false);
  again.adopt(choices);
  EXPECT_EQ(seconds_of(again), 2);
  EXPECT_EQ(again.choices(), choices);
  EXPECT_THAT(again.warnings(), IsEmpty());

  emulator::set_algorithms({{.seconds = 3}, {.seconds = 1}});
  Gemm elsewhere(true, false);
  elsewhere.adopt(choices);
  EXPECT_EQ(seconds_of(elsewhere), 3) << "the library's first: nothing is to be measured";
  EXPECT_THAT(elsewhere.warnings(),
              ElementsAre("the remembered algorithm cannot be used any more, so bits will differ: " +
                          choices.begin()->first));
  elsewhere.adopt(choices);
  elsewhere.measure(true);
  EXPECT_EQ(seconds_of(elsewhere), 1);
}

// A choice for all multiprocessors is none for fewer.
TEST_F(ProductTuning, ChoosesForTheMultiprocessorsThatThereAre) {
  emulator::set_algorithms({{.seconds = 3}, {.seconds = 2}});
  Gemm all(true, false);
  all.measure(true);
  EXPECT_EQ(seconds_of(all), 2);
  Gemm some(true, false, "", 100);
  some.adopt(all.choices());
  EXPECT_EQ(seconds_of(some), 3) << "the library's first";
  EXPECT_THAT(some.warnings(), IsEmpty());
  EXPECT_THAT(some.choices(), ElementsAre(Pair(HasSubstr(", 100 multiprocessors"), HasSubstr("seconds 3"))));
  for (const int multiprocessors : {0, 100}) {
    Gemm gemm(true, false, "", multiprocessors);
    EXPECT_EQ(adding_elsewhere(gemm).asked.multiprocessors, multiprocessors);
  }
}

TEST_F(ProductTuning, CopiesWhatIsAddedWhereThatIsFaster) {
  using emulator::kCopySeconds;
  for (const double spared : {0.5 * kCopySeconds, 1.5 * kCopySeconds}) {
    emulator::set_algorithms({{.out_of_place = false, .seconds = 2}, {.seconds = 2 + spared}});
    Gemm first(true, false);
    EXPECT_FALSE(adding_elsewhere(first).copies) << "nothing is measured";
    Gemm gemm(true, false);
    gemm.measure(true);
    const bool copies = spared > kCopySeconds;
    const emulator::Product chosen = adding_elsewhere(gemm);
    EXPECT_EQ(chosen.copies, copies);
    EXPECT_EQ(chosen.algorithm.out_of_place, !copies);

    Gemm again(true, false);
    again.adopt(gemm.choices());
    EXPECT_EQ(adding_elsewhere(again).copies, copies);
    EXPECT_THAT(again.warnings(), IsEmpty());
    EXPECT_EQ(again.choices(), gemm.choices());
  }
}

TEST_F(ProductTuning, CopiesWhatIsAddedWhereNoAlgorithmAddsOutOfPlace) {
  emulator::set_algorithms({{.out_of_place = false, .seconds = 1, .repeats_its_bits = false},
                            {.out_of_place = false, .seconds = 3},
                            {.out_of_place = false, .seconds = 2}});
  Gemm measured(true, false);
  measured.measure(true);
  const emulator::Product chosen = adding_elsewhere(measured);
  EXPECT_TRUE(chosen.copies);
  EXPECT_EQ(chosen.algorithm.seconds, 2) << "the fastest that repeats its bits";
  EXPECT_THAT(measured.choices(), ElementsAre(Pair(HasSubstr("added elsewhere"), StartsWith("copy "))));

  emulator::set_algorithms({{.out_of_place = false}});
  Gemm gemm(true, false);
  EXPECT_TRUE(adding_elsewhere(gemm).copies);
}

TEST(Checksum, IsOfAllWordsAndTheirPlaces) {
  DeviceVector<std::uint16_t> words(5000, 0);
  DeviceVector<std::uint64_t> result(1, 1);
  for (std::size_t i = 0; i < 5000; ++i) words[i] = static_cast<std::uint16_t>(i * 7);
  const auto sum = [&](std::int64_t bytes) {
    checksum(words.data(), bytes, result.data(), nullptr);
    emulator::run_all();
    return result[0];
  };
  const std::uint64_t all = sum(10000);
  EXPECT_EQ(sum(10000), all);
  EXPECT_NE(sum(9998), all);
  EXPECT_EQ(sum(0), 0U);
  std::swap(words[3], words[4000]);
  EXPECT_NE(sum(10000), all);
  std::swap(words[3], words[4000]);
  ++words[4999];
  EXPECT_NE(sum(10000), all);
}

}  // namespace
}  // namespace llampi::test
