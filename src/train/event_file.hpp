// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files, made of the lines of metrics.jsonl.
//
// The format is TensorFlow's: a TFRecord file (https://www.tensorflow.org/tutorials/load_data/tfrecord) of Event messages
// (tensorflow/core/util/event.proto, framework/summary.proto). The few fields that scalars need are encoded here: a
// dependency on protobuf would be larger than the encoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "train/growing_file.hpp"

namespace llampi::train {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);

/// One record: length, its checksum, the message, its checksum.
std::string tf_record(std::string_view message);

/// One curve's value at a step.
struct Scalar {
  std::string tag;  ///< "train/loss"
  double value;     ///< stored as float32; may be not a number
};

/// Of a line of metrics.jsonl: what TensorBoard shows of it. A loss or gradient norm that is null there is not a number; other
/// values that are null are left out. Empty for what is no such line.
std::vector<Scalar> scalars_of(std::string_view metrics_line);

/// Event messages, without their records.
std::string first_event(double time);
std::string restart_event(double time);
std::string scalars_event(double time, std::int64_t step, const std::vector<Scalar>& scalars);

/// FOLDER/events.out.tfevents.SECONDS.HOST.llampi. One such file says what metrics.jsonl says: a run that continues writes a new
/// one, with all lines that metrics.jsonl has then, and empties the old one. So no step that is done again is shown twice. A
/// TensorBoard that reads the folder meanwhile goes on with the new file, which begins by telling it to forget the steps that it
/// knows. One rank has it.
class EventFile {
 public:
  /// @param metrics metrics.jsonl, cut back to where the run continues
  /// @throws Error if metrics.jsonl cannot be read or the folder cannot be written
  EventFile(const std::filesystem::path& folder, const std::filesystem::path& metrics);

  /// Adds a line of metrics.jsonl. While it cannot be written, it is kept in memory: a run does not end because of this file.
  void append(std::string_view metrics_line);

 private:
  GrowingFile file_;
};

}  // namespace llampi::train
