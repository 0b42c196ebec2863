// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/loader.hpp"

#include <algorithm>
#include <future>
#include <utility>

#include "llampi/core/error.hpp"

namespace llampi::data {
namespace {

/// Tokens [begin, begin + ids.size()), all of them in the vocabulary.
void read_checked(const TokenFile& file, std::int64_t begin, std::int64_t vocabulary,
                  std::span<std::int32_t> ids) {
  file.read(begin, ids);
  const auto bad =
      std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < 0 || id >= vocabulary; });
  if (bad == ids.end()) return;
  throw_user_error(
      "{}: token {} at position {} is outside the model's vocabulary of {}: tokenize with the model's "
      "tokenizer, or use a model with a larger vocab_size",
      file.path().string(), *bad, begin + (bad - ids.begin()), vocabulary);
}

/// Where documents start in (begin, end], relative to begin, each position once: empty documents share theirs
/// with the next.
std::vector<std::int64_t> document_starts(const TokenFile& file, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> starts;
  for (const auto position : file.starts_in(begin, end)) {
    const auto start = static_cast<std::int64_t>(position) - begin;
    if (starts.empty() || starts.back() != start) starts.push_back(start);
  }
  return starts;
}

/// Fills one sequence of a micro-batch after the other.
class BatchBuilder {
 public:
  BatchBuilder(const BatchOptions& options, std::size_t samples)
      : options_(options),
        batch_(options.seq_len * options.micro_batch),
        ids_(static_cast<std::size_t>(options.seq_len) + 1),
        mask_(ids_.size()) {
    require(options.seq_len > 0 && options.vocabulary > 0, "sizes of a batch");
    require(static_cast<std::int64_t>(samples) == options.micro_batch, "samples of a micro-batch");
  }

  void add_empty() {
    std::fill_n(batch_.labels().begin() + filled_, options_.seq_len, -1);
    add_document(options_.seq_len);
  }

  void add_sample(const TokenFile& file, std::int64_t sample) {
    const std::int64_t length = options_.seq_len;
    require(sample >= 0 && sample < file.samples(length), "a sample beyond the token file");
    const std::int64_t begin = sample * length;
    read_checked(file, begin, options_.vocabulary, ids_);
    file.read_mask(begin, mask_);
    std::vector<std::int64_t> starts;
    if (options_.document_mask) starts = document_starts(file, begin, begin + length);
    for (const auto start : starts) mask_[static_cast<std::size_t>(start)] = 0;

    std::copy_n(ids_.begin(), length, batch_.tokens().begin() + filled_);
    const auto labels = batch_.labels().subspan(static_cast<std::size_t>(filled_), ids_.size() - 1);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const bool valid = mask_[i + 1] != 0;  // the mask of the position that is predicted
      labels[i] = valid ? ids_[i + 1] : -1;
      batch_.valid_labels += valid ? 1 : 0;
    }

    const std::int64_t sequence = filled_;
    for (const auto start : starts) {
      if (start < length) add_document(sequence + start - filled_);
    }
    add_document(sequence + length - filled_);
  }

  device::HostBatch finish() { return std::move(batch_); }

 private:
  void add_document(std::int64_t tokens) {
    for (std::int64_t i = 0; i < tokens; ++i) batch_.positions()[filled_ + i] = static_cast<std::int32_t>(i);
    filled_ += tokens;
    batch_.cu_seqlens()[++batch_.documents] = static_cast<std::int32_t>(filled_);
  }

  const BatchOptions& options_;
  device::HostBatch batch_;
  std::int64_t filled_ = 0;  // tokens of the batch that have their document
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> mask_;
};

}  // namespace

device::HostBatch make_batch(const TokenFile& file, const BatchOptions& options,
                             const std::vector<std::int64_t>& samples) {
  std::vector<SamplePlace> places;
  for (const auto sample : samples)
    places.push_back(sample < 0 ? SamplePlace{} : SamplePlace{.file = &file, .sample = sample});
  return make_batch(places, options);
}

device::HostBatch make_batch(const std::vector<SamplePlace>& samples, const BatchOptions& options) {
  BatchBuilder builder(options, samples.size());
  for (const auto& [file, sample] : samples) {
    if (file == nullptr) {
      builder.add_empty();
    } else {
      builder.add_sample(*file, sample);
    }
  }
  return builder.finish();
}

device::HostBatch make_batch(std::span<const std::int32_t> rows, std::int64_t seq_len) {
  const auto row = static_cast<std::size_t>(seq_len) + 1;
  require(seq_len > 0 && !rows.empty() && rows.size() % row == 0, "rows of seq_len + 1 ids");
  device::HostBatch batch(static_cast<std::int64_t>(rows.size() / row) * seq_len);
  batch.cut_into_documents(seq_len);
  for (std::int64_t s = 0; s < batch.documents; ++s) {
    const auto ids = rows.subspan(static_cast<std::size_t>(s) * row, row);
    std::copy(ids.begin(), ids.end() - 1, batch.tokens().begin() + s * seq_len);
    std::copy(ids.begin() + 1, ids.end(), batch.labels().begin() + s * seq_len);
  }
  batch.valid_labels = batch.token_count();
  return batch;
}

class Loader::Impl {
 public:
  Impl(const TrainingData& data, const BatchOptions& options, const Sampler& sampler,
       std::vector<std::int64_t> numbers)
      : data_(data), options_(options), sampler_(sampler), numbers_(std::move(numbers)) {
    require(options.micro_batch > 0, "micro-batches of a loader");
  }

  std::vector<device::HostBatch> next(std::int64_t step) {
    if (!ahead_.valid() || ahead_step_ != step) start(step);
    auto batches = ahead_.get();
    start(step + 1);
    return batches;
  }

 private:
  // One short-lived thread per step costs less than 0.1 ms; the future carries its exceptions, and replacing
  // or destroying it waits for the thread, so there is never more than one and none outlives the loader. Where the system has no
  // thread to give at this moment, the batches are read once they are asked for.
  void start(std::int64_t step) {
    ahead_ = {};
    ahead_step_ = step;
    ahead_ = std::async(std::launch::async | std::launch::deferred, [this, step] { return read(step); });
  }

  std::vector<device::HostBatch> read(std::int64_t step) const {
    std::vector<device::HostBatch> batches;
    std::vector<SamplePlace> samples(static_cast<std::size_t>(options_.micro_batch));
    for (const std::int64_t number : numbers_) {
      const std::int64_t first = number * options_.micro_batch;
      std::int64_t index = first;
      for (auto& sample : samples) sample = data_.place(sampler_.sample(step, index++), sampler_.epoch(step));
      batches.push_back(make_batch(samples, options_));
      batches.back().set_first_sample((step - 1) * sampler_.global_batch() + first);
    }
    return batches;
  }

  const TrainingData& data_;
  const BatchOptions options_;
  const Sampler sampler_;
  const std::vector<std::int64_t> numbers_;
  std::int64_t ahead_step_ = 0;
  std::future<std::vector<device::HostBatch>> ahead_;  // last: its thread uses the members above
};

Loader::Loader(const TrainingData& data, const BatchOptions& options, const Sampler& sampler,
               std::vector<std::int64_t> numbers)
    : impl_(std::make_unique<Impl>(data, options, sampler, std::move(numbers))) {}

Loader::~Loader() = default;

std::vector<device::HostBatch> Loader::next(std::int64_t step) { return impl_->next(step); }

}  // namespace llampi::data
