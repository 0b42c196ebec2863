// SPDX-License-Identifier: Apache-2.0
// Memory, order, copies and casts of the GPU.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "gpu/gpu_fixture.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/core/philox.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr device::Stream kAll[] = {device::Stream::compute, kUnshard, kReduce, kCopy, kCopyOut};

/// Bytes on the device, with `offset` to stand at any address.
class Buffer {
 public:
  Buffer(device::Device& device, DType dtype, std::int64_t elements, std::int64_t offset = 0)
      : device_(device), memory_(device.allocate(bytes_of(dtype, elements + offset))) {
    view_ = Tensor{memory_.data(), dtype, 1, elements + offset}.slice(offset, elements + offset);
  }
  Tensor view() const { return view_; }

  template <class T>
  void set(const std::vector<T>& values) const {
    device_.upload(view_, values.data(), device::Stream::compute);
    device_.synchronize(device::Stream::compute);
  }
  template <class T>
  std::vector<T> get() const {
    std::vector<T> values(static_cast<std::size_t>(view_.bytes()) / sizeof(T));
    device_.download(values.data(), view_, device::Stream::compute);
    device_.synchronize(device::Stream::compute);
    return values;
  }

 private:
  device::Device& device_;
  device::Memory memory_;
  Tensor view_;
};

/// A number in `dtype` as bits, and back: the definition, by core/half.hpp.
std::uint32_t narrow(float x, DType dtype) {
  if (dtype == DType::bfloat16) return to_bfloat16(x);
  if (dtype == DType::float16) return to_float16(x);
  return std::bit_cast<std::uint32_t>(x);
}
float widen(std::uint32_t bits, DType dtype) {
  if (dtype == DType::bfloat16) return from_bfloat16(static_cast<std::uint16_t>(bits));
  if (dtype == DType::float16) return from_float16(static_cast<std::uint16_t>(bits));
  return std::bit_cast<float>(bits);
}

std::vector<std::byte> packed(const std::vector<std::uint32_t>& bits, DType dtype) {
  const auto size = static_cast<std::size_t>(size_of(dtype));
  std::vector<std::byte> bytes(bits.size() * size);
  for (std::size_t i = 0; i < bits.size(); ++i) std::memcpy(&bytes[i * size], &bits[i], size);
  return bytes;
}
std::vector<std::uint32_t> unpacked(const std::vector<std::byte>& bytes, DType dtype) {
  const auto size = static_cast<std::size_t>(size_of(dtype));
  std::vector<std::uint32_t> bits(bytes.size() / size, 0);
  for (std::size_t i = 0; i < bits.size(); ++i) std::memcpy(&bits[i], &bytes[i * size], size);
  return bits;
}

/// Numbers of all magnitudes, zeros of both signs, infinities and NaN, as `dtype` has them.
std::vector<std::uint32_t> numbers(std::int64_t count, DType dtype) {
  std::mt19937 random(20240607);
  std::vector<std::uint32_t> bits;
  const float special[] = {0.0F, -0.0F, INFINITY, -INFINITY, NAN, 65504.0F, 65520.0F, 1.0F, 6e-8F};
  for (std::int64_t i = 0; i < count; ++i) {
    float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (i % 3 == 0)
      x = std::ldexp(static_cast<float>(random() % 100000) - 5e4F, static_cast<int>(random() % 40) - 38);
    if (i % 17 == 0) x = special[static_cast<std::size_t>(i) / 17 % std::size(special)];
    bits.push_back(narrow(x, dtype));
  }
  return bits;
}

/// Equal bits; NaN is NaN.
void expect_equal(const std::vector<std::uint32_t>& actual, const std::vector<std::uint32_t>& expected,
                  DType dtype) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(widen(expected[i], dtype))) {
      ASSERT_TRUE(std::isnan(widen(actual[i], dtype))) << i;
    } else {
      ASSERT_EQ(actual[i], expected[i])
          << i << ": " << widen(actual[i], dtype) << " for " << widen(expected[i], dtype);
    }
  }
}

class GpuDevice : public GpuTest {};

TEST_F(GpuDevice, DescribesItself) {
  const std::string text = device().describe();
  EXPECT_TRUE(text.find("cuBLASLt") != std::string::npos ||
              text.find("emulated products") != std::string::npos)
      << text;
  EXPECT_NE(text.find("attention native"), std::string::npos) << text;
}

TEST_F(GpuDevice, MemoryIsAlignedAndZero) {
  for (const std::int64_t bytes : {1, 4095, 4097, 1 << 20}) {
    for (int again = 0; again < 2; ++again) {  // the second may be the first's, which is left full of ones
      const device::Memory memory = device().allocate(bytes), host = device().allocate_host(bytes);
      EXPECT_EQ(memory.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096, 0U);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host.data()) % 4096, 0U);
      const std::vector<std::byte> zeros(static_cast<std::size_t>(bytes)),
          ones(zeros.size(), std::byte{0xFF});
      EXPECT_EQ(std::memcmp(host.data(), zeros.data(), zeros.size()), 0);
      // Four bytes an element or one: the size in bytes is what counts here.
      std::vector<std::byte> seen(zeros.size() / 4 * 4);
      const Tensor view{memory.data(), DType::int32, 1, bytes / 4};
      device().download(seen.data(), view, kCopyOut);
      device().synchronize(kCopyOut);
      EXPECT_TRUE(std::equal(seen.begin(), seen.end(), zeros.begin()));
      device().upload(view, ones.data(), kCopy);
      device().synchronize(kCopy);
      std::memset(host.data(), 0xFF, ones.size());
    }
  }
  EXPECT_EQ(device().allocate(0).data(), nullptr);
}

TEST_F(GpuDevice, SaysWhenTooMuchIsAskedFor) {
  EXPECT_THROW(device().allocate(std::int64_t{1} << 50), UserError);
  const Buffer x(device(), DType::float32, 8);  // and goes on
  device().run(device::op::Add{.source = x.view(), .destination = x.view()});
  EXPECT_EQ(x.get<float>(), std::vector<float>(8));
}

// However many ranks there are on the node: only those that have this GPU share its memory.
TEST_F(GpuDevice, HasNoMoreMultiprocessorsThanItHas) {
  std::string why;
  EXPECT_NE(make_gpu({.product_sms = 1}, why), nullptr);
  try {
    make_gpu({.product_sms = 1000}, why);
    FAIL() << "it was taken";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("fsdp.product_sms = 1000: "), std::string::npos) << error.what();
  }
}

TEST_F(GpuDevice, RanksThatHaveItShareWhatIsThere) {
  std::string why;
  const auto shared = make_gpu({.attention = device::GpuAttention::native, .ranks = 2}, why);
  ASSERT_NE(shared, nullptr) << why;
  const std::int64_t alone = device().available_bytes(1);
  EXPECT_GT(alone, 0);
  EXPECT_GT(device().available_bytes(8), alone / 2);
  EXPECT_EQ(shared->available_bytes(1), alone);
  EXPECT_EQ(shared->available_bytes(2), alone / 2);
  EXPECT_EQ(shared->available_bytes(8), alone / 2);
}

TEST_F(GpuDevice, EventsOrderStreams) {
  // A number handed from stream to stream, each of which adds its own: only the events keep the order.
  constexpr std::int64_t n = 1 << 16;
  for (const auto& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    const device::Memory host = device().allocate_host(n * 4);
    auto* const values = reinterpret_cast<std::int32_t*>(host.data());
    const Buffer a(device(), DType::int32, n), b(device(), DType::int32, n);
    for (std::int64_t i = 0; i < n; ++i) values[i] = static_cast<std::int32_t>(i);
    device().upload(a.view(), values, kCopy);
    device().wait(device::Stream::compute, device().record(kCopy));
    device().run(device::op::Copy{.source = a.view(), .destination = b.view()});
    device().wait(kCopyOut, device().record(device::Stream::compute));
    const device::Memory back = device().allocate_host(n * 4);
    device().download(back.data(), b.view(), kCopyOut);
    device().wait(device::Stream::host, device().record(kCopyOut));
    EXPECT_EQ(std::memcmp(back.data(), values, n * 4), 0);
  }
}

TEST_F(GpuDevice, AnEventKeepsItsPointWhenTheNextIsRecorded) {
  const Buffer x(device(), DType::float32, 1000);
  for (int round = 0; round < 100; ++round) {  // more events than are in use at a time
    for (const device::Stream stream : kAll) {
      const device::Event first = device().record(stream);
      const device::Event second = device().record(stream);
      for (const device::Stream waiting : kAll) device().wait(waiting, first);
      device().wait(device::Stream::host, second);
    }
    device().run(device::op::Zero{.destination = x.view()});
  }
  device().wait(device::Stream::host, device::Event());
  device().wait(device::Stream::compute, device().record(device::Stream::host));
  device().synchronize(device::Stream::host);
  for (const device::Stream stream : kAll) device().synchronize(stream);
}

TEST_F(GpuDevice, EventsTellTheTimeBetweenThem) {
  constexpr double kResolution = 2e-6;
  const Buffer a(device(), DType::float32, 100000), b(device(), DType::float32, 100000);
  for (const auto& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    device().synchronize_all();
    const double issued = steady_seconds();
    const device::Event begin = device().record_timed(device::Stream::compute);
    device().run(device::op::Add{.source = a.view(), .destination = b.view()});
    const device::Event added = device().record_timed(device::Stream::compute);
    device().wait(kCopy, added);
    const device::Event later = device().record_timed(kCopy);
    device().synchronize_all();
    const double all = steady_seconds() - issued;
    const double of_add = device().seconds_between(begin, added);
    EXPECT_GT(of_add, 0);
    EXPECT_LE(of_add, all);
    EXPECT_GE(device().seconds_between(added, later), -kResolution);
    EXPECT_NEAR(device().seconds_between(begin, later), of_add + device().seconds_between(added, later),
                kResolution);
  }
}

TEST_F(GpuDevice, TheHostHasNoTimedEvents) {
  EXPECT_TRUE(device().runs_beside_host());
  EXPECT_THROW(device().record_timed(device::Stream::host), Error);
}

TEST_F(GpuDevice, ReplaysWhatWasCapturedOnAllStreams) {
  // Up on one stream, twice on another, down on a third; each replay with what is in host memory then.
  constexpr std::int64_t n = 5000;
  ASSERT_TRUE(device().can_capture());
  for (const auto& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    const device::Memory from = device().allocate_host(n * 4), to = device().allocate_host(n * 4);
    auto* const values = reinterpret_cast<float*>(from.data());
    const auto* const results = reinterpret_cast<const float*>(to.data());
    const Buffer a(device(), DType::float32, n);
    device().begin_capture();
    device().upload(a.view(), values, kCopy);
    device().wait(device::Stream::compute, device().record(kCopy));
    device().run(device::op::Add{.source = a.view(), .destination = a.view()});
    device().wait(kCopyOut, device().record(device::Stream::compute));
    device().download(to.data(), a.view(), kCopyOut);
    device::Graph graph = device().end_capture();
    EXPECT_GE(graph.nodes(), 3);
    EXPECT_THROW(device().replay(graph), Error);
    ASSERT_TRUE(device().instantiate(graph));
    device().synchronize(device::Stream::compute);
    EXPECT_EQ(results[n - 1], 0) << "done while it was captured";
    for (const float value : {1.0F, 2.5F}) {
      std::fill(values, values + n, value);
      device().replay(graph);
      device().synchronize(device::Stream::compute);  // has joined the others
      EXPECT_EQ(std::count(results, results + n, 2 * value), n);
    }
  }
}

TEST_F(GpuDevice, GoesOnAfterACaptureThatWasBrokenOff) {
  const Buffer x(device(), DType::float32, 8);
  x.set(std::vector<float>(8, 1));
  device().begin_capture();
  device().run(device::op::Add{.source = x.view(), .destination = x.view()});
  device().wait(kReduce, device().record(device::Stream::compute));
  device().drop_capture();
  EXPECT_EQ(x.get<float>(), std::vector<float>(8, 1));

  device().begin_capture();
  device().run(device::op::Add{.source = x.view(), .destination = x.view()});
  EXPECT_THROW(device().synchronize(device::Stream::compute), Error);
  EXPECT_THROW(device().end_capture(), Error);
  device().drop_capture();
  device().run(device::op::Add{.source = x.view(), .destination = x.view()});
  EXPECT_EQ(x.get<float>(), std::vector<float>(8, 2));
}

// What the host waits for must outlast its way there: an addition to a GiB takes a GPU half a millisecond or
// more (2 GiB read and written), one to 4 MiB only microseconds. The emulated GPU is late by choice.
TEST_F(GpuDevice, CallsWhileTheHostWaits) {
  const bool emulated = work_orders().size() > 1;
  const Buffer x(device(), DType::float32, emulated ? 1 << 20 : 1 << 28);
  work_orders().at(emulated ? 1 : 0).set();
  int calls = 0;
  device().set_progress([&] { ++calls; });
  for (int i = 0; i < 16; ++i) device().run(device::op::Add{.source = x.view(), .destination = x.view()});
  const int between = std::exchange(calls, 0);
  device().wait(device::Stream::host, device().record(device::Stream::compute));
  device().synchronize(device::Stream::compute);
  EXPECT_EQ(between, 16);
  EXPECT_GT(calls, 0);
  device().set_progress([] { throw Error("a rank is lost"); });
  for (int i = 0; i < 6; ++i)
    EXPECT_THROW(device().run(device::op::Add{.source = x.view(), .destination = x.view()}),
                 Error);  // each is issued
  EXPECT_THROW(device().synchronize(device::Stream::compute), Error);
  device().set_progress({});
  device().synchronize(device::Stream::compute);
}

TEST_F(GpuDevice, CopiesHostMemoryLikewise) {
  const device::Memory from = device().allocate_host(4000), to = device().allocate_host(4000);
  for (int i = 0; i < 1000; ++i) reinterpret_cast<std::int32_t*>(from.data())[i] = i;
  device().upload({to.data(), DType::int32, 1, 1000}, from.data(), kCopy);
  device().synchronize(kCopy);
  EXPECT_EQ(std::memcmp(from.data(), to.data(), 4000), 0);
}

// Lengths around those of vectors and blocks; addresses that are not multiples of 16 bytes.
constexpr std::int64_t kLengths[] = {1, 7, 8, 9, 2047, 2048, 70001};

TEST_F(GpuDevice, CastsBetweenAllTypes) {
  for (const DType from : kGpuTypes) {
    for (const DType to : kGpuTypes) {
      for (const std::int64_t n : kLengths) {
        for (const std::int64_t offset : {0, 3}) {
          SCOPED_TRACE(fmt::format("{} {} to {}, offset {}", n, to_string(from), to_string(to), offset));
          const auto bits = numbers(n, from);
          const Buffer source(device(), from, n, offset), destination(device(), to, n + 1, offset);
          source.set(packed(bits, from));
          const std::vector<std::uint32_t> poison(static_cast<std::size_t>(n + 1), narrow(3.0F, to));
          destination.set(packed(poison, to));
          device().run(
              device::op::Cast{.source = source.view(), .destination = destination.view().slice(0, n)});
          std::vector<std::uint32_t> expected;
          for (const std::uint32_t x : bits) expected.push_back(from == to ? x : narrow(widen(x, from), to));
          expected.push_back(poison.back());  // what lies behind is not touched
          expect_equal(unpacked(destination.get<std::byte>(), to), expected, to);
        }
      }
    }
  }
}

// Rounded once more than in float32 where the result is of 16 bits. One block, fewer and more than a thread block has warps, and
// more than all of them take at once.
TEST_F(GpuDevice, WidensBlocksOfEightBits) {
  constexpr std::int64_t kMost = 20001;
  std::vector<float> all(static_cast<std::size_t>(kMost * kInt8BlockElements));
  const RandomStream random(5, "blocks of 8 bits");
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(random.normal(i));
  for (const DType to : kGpuTypes) {
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{7}, std::int64_t{9}, kMost}) {
      for (const std::int64_t offset : {0, 3}) {  // blocks
        SCOPED_TRACE(fmt::format("{} blocks to {}, offset {}", count, to_string(to), offset));
        const std::int64_t n = count * kInt8BlockElements;
        std::vector<Int8Block> blocks(static_cast<std::size_t>(count));
        to_int8_blocks(all.data(), n, blocks.data());
        const Buffer source(device(), DType::int8_blocks, n, offset * kInt8BlockElements),
            destination(device(), to, n + 1, offset * kInt8BlockElements);
        source.set(blocks);
        const std::vector<std::uint32_t> poison(static_cast<std::size_t>(n + 1), narrow(3.0F, to));
        destination.set(packed(poison, to));
        device().run(
            device::op::Cast{.source = source.view(), .destination = destination.view().slice(0, n)});
        std::vector<std::uint32_t> expected;
        for (const Int8Block& block : blocks) {
          for (const std::int8_t integer : block.values)
            expected.push_back(narrow(static_cast<float>(integer) * block.scale, to));
        }
        expected.push_back(poison.back());  // what lies behind is not touched
        expect_equal(unpacked(destination.get<std::byte>(), to), expected, to);
      }
    }
  }
}

TEST_F(GpuDevice, AddsInEveryType) {
  for (const DType dtype : kGpuTypes) {
    for (const std::int64_t n : kLengths) {
      for (const std::int64_t offset : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} {}, offset {}", n, to_string(dtype), offset));
        auto a = numbers(n, dtype);
        const auto b = numbers(n, dtype);
        std::rotate(a.begin(), a.begin() + 1, a.end());
        const Buffer source(device(), dtype, n, offset), destination(device(), dtype, n, offset);
        source.set(packed(a, dtype));
        destination.set(packed(b, dtype));
        device().run(device::op::Add{.source = source.view(), .destination = destination.view()});
        std::vector<std::uint32_t> expected;  // one rounding, after a sum in float32
        for (std::size_t i = 0; i < a.size(); ++i)
          expected.push_back(narrow(widen(a[i], dtype) + widen(b[i], dtype), dtype));
        expect_equal(unpacked(destination.get<std::byte>(), dtype), expected, dtype);
      }
    }
  }
}

TEST_F(GpuDevice, DrawsTheNumbersOfTheHost) {
  const RandomStream stream(5, "init model.embed_tokens.weight");
  constexpr double kDeviation = 0.02;
  constexpr std::int64_t kCount = 70001, kFirst = (std::int64_t{1} << 32) - 100;
  for (const DType dtype : kGpuTypes) {
    const Buffer out(device(), dtype, kCount, 1);
    device().run(device::op::RandomNormal{
        .stream = stream, .first = kFirst, .standard_deviation = kDeviation, .out = out.view()});
    std::vector<std::uint32_t> expected;
    for (std::uint64_t i = 0; i < kCount; ++i)
      expected.push_back(narrow(static_cast<float>(kDeviation * stream.normal(kFirst + i)), dtype));
    expect_equal(unpacked(out.get<std::byte>(), dtype), expected, dtype);
  }
}

TEST_F(GpuDevice, ZeroesNothingBehindTheEnd) {
  const Buffer x(device(), DType::float32, 1001);
  x.set(std::vector<float>(1001, NAN));
  device().run(device::op::Zero{.destination = x.view().slice(1, 1000)});
  const auto values = x.get<float>();
  EXPECT_TRUE(std::isnan(values.front()) && std::isnan(values.back()));
  for (std::size_t i = 1; i < 1000; ++i) ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), 0U);
}

TEST_F(GpuDevice, RefusesWhatDoesNotFit) {
  const Buffer a(device(), DType::float32, 8), b(device(), DType::bfloat16, 8),
      c(device(), DType::float32, 4), d(device(), DType::int32, 8);
  EXPECT_THROW(device().run(device::op::Add{.source = a.view(), .destination = b.view()}), Error);
  EXPECT_THROW(device().run(device::op::Add{.source = a.view(), .destination = c.view()}), Error);
  EXPECT_THROW(device().run(device::op::Cast{.source = b.view(), .destination = c.view()}), Error);
  EXPECT_THROW(device().run(device::op::Cast{.source = a.view(), .destination = d.view()}), Error);
  const Buffer e(device(), DType::int8_blocks, kInt8BlockElements);
  EXPECT_THROW(device().run(device::op::Cast{.source = e.view(), .destination = a.view()}), Error);
  EXPECT_THROW(device().run(device::op::Copy{.source = a.view(), .destination = c.view()}), Error);
  EXPECT_THROW(device().upload(a.view(), nullptr, device::Stream::host), Error);
}

}  // namespace
}  // namespace llampi::test
