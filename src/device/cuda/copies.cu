// SPDX-License-Identifier: Apache-2.0
// Copies, casts and sums, element by element.
#include <algorithm>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/kernels.cuh"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

constexpr std::int64_t kBlocks = 2048;  // enough to fill any GPU; each block then takes more than one piece

/// to (+)= from: `vectors` pieces of 16 bytes of the narrower type, then the elements that are left.
template <class From, class To, bool kAdd>
__global__ void convert(const From* from, To* to, std::int64_t vectors, std::int64_t elements) {
  constexpr int kWidth = Pack<From>::kSize > Pack<To>::kSize ? Pack<From>::kSize : Pack<To>::kSize;
  constexpr int kReads = kWidth / Pack<From>::kSize, kWrites = kWidth / Pack<To>::kSize;
  const std::int64_t first = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kElementThreads;
  for (std::int64_t v = first; v < vectors; v += stride) {
    Pack<From> in[kReads];
    Pack<To> out[kWrites];
    for (int i = 0; i < kReads; ++i) in[i] = load_pack(from + v * kWidth + i * Pack<From>::kSize);
    if constexpr (kAdd) {
      for (int i = 0; i < kWrites; ++i) out[i] = load_pack(to + v * kWidth + i * Pack<To>::kSize);
    }
    for (int i = 0; i < kWidth; ++i) {
      float x = to_float(in[i / Pack<From>::kSize].values[i % Pack<From>::kSize]);
      To& y = out[i / Pack<To>::kSize].values[i % Pack<To>::kSize];
      if constexpr (kAdd) x += to_float(y);
      y = from_float<To>(x);
    }
    for (int i = 0; i < kWrites; ++i) store_pack(to + v * kWidth + i * Pack<To>::kSize, out[i]);
  }
  for (std::int64_t i = vectors * kWidth + first; i < elements; i += stride) {
    float x = to_float(from[i]);
    if constexpr (kAdd) x += to_float(to[i]);
    to[i] = from_float<To>(x);
  }
}

template <class From, class To>
void launch_convert(const Tensor& source, const Tensor& destination, Accumulate accumulate,
                    cudaStream_t stream) {
  constexpr std::int64_t kWidth = std::max(Pack<From>::kSize, Pack<To>::kSize);
  const auto* const from = static_cast<const From*>(source.data);
  auto* const to = static_cast<To*>(destination.data);
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % 16 == 0;
  const std::int64_t elements = source.elements(), vectors = aligned ? elements / kWidth : 0;
  const std::int64_t work = aligned ? ceil_div(elements, kWidth) : elements;
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(work, kElementThreads), kBlocks));
  launch(accumulate == Accumulate::yes ? convert<From, To, true> : convert<From, To, false>, dim3(blocks),
         dim3(kElementThreads), 0, stream, from, to, vectors, elements);
}

/// Four elements, written at once.
template <class To>
struct alignas(4 * sizeof(To)) Quad {
  To values[4];
};

constexpr std::int64_t kBlockWords = kInt8BlockBytes / 4;  // the scale, then four elements each
constexpr unsigned kThreadsOfBlock = kInt8BlockElements / 4;

/// A warp takes a block of int8_blocks: as many words as it has threads, side by side, and their scale.
template <class To>
__global__ void widen_blocks(const std::uint32_t* words, Quad<To>* to, std::int64_t blocks) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x) / kThreadsOfBlock;
  const std::int64_t stride = std::int64_t{gridDim.x} * (kElementThreads / kThreadsOfBlock);
  const unsigned lane = threadIdx.x % kThreadsOfBlock;
  for (std::int64_t b = first; b < blocks; b += stride) {
    const float scale = __uint_as_float(words[b * kBlockWords]);
    const std::uint32_t four = words[b * kBlockWords + 1 + lane];
    Quad<To> quad;
    for (int i = 0; i < 4; ++i) {
      const auto integer = static_cast<std::int8_t>(four >> (8 * i));
      quad.values[i] = from_float<To>(static_cast<float>(integer) * scale);
    }
    to[b * kThreadsOfBlock + lane] = quad;
  }
}

void launch_widen_blocks(const Tensor& source, const Tensor& destination, cudaStream_t stream) {
  require(source.elements() == destination.elements(), "cast between tensors of unlike sizes");
  const std::int64_t blocks = source.elements() / kInt8BlockElements;
  if (blocks == 0) return;
  dispatch(destination.dtype, [&](auto tag) {
    using To = typename decltype(tag)::type;
    require(reinterpret_cast<std::uintptr_t>(destination.data) % alignof(Quad<To>) == 0,
            "a destination that is not aligned");
    const std::int64_t grid = std::min(ceil_div(blocks, kElementThreads / kThreadsOfBlock), kBlocks);
    launch(widen_blocks<To>, dim3(static_cast<unsigned>(grid)), dim3(kElementThreads), 0, stream,
           static_cast<const std::uint32_t*>(source.data), static_cast<Quad<To>*>(destination.data), blocks);
  });
}

}  // namespace

void CudaDevice::add_cast(Tensor source, Tensor destination, Accumulate accumulate, Stream on) {
  const cudaStream_t stream = this->stream(on);
  require(source.elements() == destination.elements(), "cast between tensors of unlike sizes");
  if (source.elements() == 0) return;
  dispatch(source.dtype, [&](auto from) {
    dispatch(destination.dtype, [&](auto to) {
      launch_convert<typename decltype(from)::type, typename decltype(to)::type>(source, destination,
                                                                                 accumulate, stream);
    });
  });
}

void CudaDevice::execute(const op::Add& o) {
  require(o.source.dtype == o.destination.dtype, "sum of tensors of unlike dtypes");
  add_cast(o.source, o.destination, Accumulate::yes, Stream::compute);
}

void CudaDevice::execute(const op::Copy& o) {
  require(o.source.dtype == o.destination.dtype && o.source.elements() == o.destination.elements(),
          "copy between unlike tensors");
  upload(o.destination, o.source.data, Stream::compute);
}

void CudaDevice::execute(const op::Cast& o) {
  if (o.source.dtype == o.destination.dtype) return execute(op::Copy{o.source, o.destination});
  if (o.source.dtype == DType::int8_blocks)
    return launch_widen_blocks(o.source, o.destination, stream(Stream::compute));
  add_cast(o.source, o.destination, Accumulate::no, Stream::compute);
}

void CudaDevice::execute(const op::Zero& o) {
  if (o.destination.bytes() > 0) {
    check(cudaMemsetAsync(o.destination.data, 0, static_cast<std::size_t>(o.destination.bytes()), compute()),
          "cudaMemsetAsync");
  }
}

}  // namespace llampi::device::cuda
