// SPDX-License-Identifier: Apache-2.0
#include "emulator/capture.hpp"

#include <algorithm>

#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

std::weak_ptr<Capture>& current() {
  static std::weak_ptr<Capture> capture;
  return capture;
}

int next_number() {
  static int captures = 0;
  return ++captures;
}

}  // namespace

Capture::Capture(CUstream_st& origin) : origin_(origin), number_(next_number()) {}

cudaError_t Capture::begin(CUstream_st& origin) {
  if (origin.capture) return cudaErrorIllegalState;
  require(!current().lock(), "the emulated runtime captures one graph at a time");
  const auto capture = std::make_shared<Capture>(origin);
  capture->join(origin);
  current() = capture;
  return cudaSuccess;
}

void Capture::join(CUstream_st& stream) {
  stream.capture = shared_from_this();
  streams_.push_back(&stream);
}

cudaError_t Capture::invalidate(cudaError_t error) {
  valid_ = false;
  return error;
}

cudaError_t Capture::forbid() {
  const auto capture = current().lock();
  return capture ? capture->invalidate(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

void Capture::record(CUstream_st& stream, Task task) {
  if (!valid_) throw Error("cudaErrorStreamCaptureInvalidated: a call that is not allowed came before");
  recorded_.emplace_back(&stream, std::move(task));
  ++known_[&stream][&stream];
}

std::shared_ptr<Point> Capture::mark(CUstream_st& stream) {
  auto point = std::make_shared<Point>(&stream, shared_from_this());
  if (valid_) recorded_.emplace_back(&stream, Task{{}, {}, point});
  points_[point.get()] = {known_[&stream], point};
  return point;
}

cudaError_t Capture::wait(CUstream_st& stream, const std::shared_ptr<Point>& point) {
  if (!point->capture) return stream.capture->invalidate(cudaErrorStreamCaptureIsolation);
  Capture& capture = *point->capture;
  if (!capture.open_) {
    if (stream.capture) stream.capture->invalidate(cudaErrorStreamCaptureIsolation);
    return cudaErrorCapturedEvent;
  }
  if (!capture.valid_) return cudaErrorStreamCaptureInvalidated;
  if (!stream.capture) capture.join(stream);
  if (&stream == point->stream) return cudaSuccess;
  capture.record(stream, {{}, point, {}});
  Known& known = capture.known_[&stream];
  for (const auto& [other, tasks] : capture.points_.at(point.get()).first)
    known[other] = std::max(known[other], tasks);
  return cudaSuccess;
}

cudaError_t Capture::end(CUstream_st& origin, Recorded& recorded) {
  const auto capture = origin.capture;
  if (!capture || &capture->origin_ != &origin) return cudaErrorIllegalState;
  Known& known = capture->known_[&origin];
  const bool joined =
      std::all_of(capture->streams_.begin(), capture->streams_.end(),
                  [&](const auto* stream) { return known[stream] == capture->known_[stream][stream]; });
  for (CUstream_st* stream : capture->streams_) stream->capture.reset();
  capture->open_ = false;
  current().reset();
  recorded = std::move(capture->recorded_);
  capture->points_.clear();
  if (!capture->valid_) return cudaErrorStreamCaptureInvalidated;
  return joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

}  // namespace llampi::emulator
