// The parameters in a checkpoint, for whoever wants them in ranges: each process opens the file by itself.
#include "checkpoint/schema.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/transfer.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

class CheckpointWeights final : public WeightsSource {
 public:
  explicit CheckpointWeights(fs::path path) : path_(std::move(path)) {
    reading([&] {
      const Hdf5Lock lock;
      file_ = hdf5::open_file(path_);
      require_checkpoint(file_.id(), path_);
      tensors_ = list_datasets(file_.id(), kRoles[0]);
      for (auto& tensor : tensors_) tensor.optimizer = false;
      datasets_ = open_datasets(file_.id(), tensors_);
    });
  }

  fs::path path() const override { return path_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const override {
    reading([&] { read_range(datasets_[0][tensor].id(), tensors_[tensor].shape, begin, elements, values); });
  }

 private:
  template <class Work>
  void reading(const Work& work) const {
    try {
      work();
    } catch (const hdf5::Failure& failure) {
      throw_user_error("{} is damaged and cannot be read ({}); use another checkpoint", path_.string(),
                       failure.reason());
    }
  }

  fs::path path_;
  hdf5::File file_;
  std::vector<TensorInfo> tensors_;
  Datasets datasets_;
};

}  // namespace

std::unique_ptr<WeightsSource> open_checkpoint_weights(const fs::path& file) {
  return std::make_unique<CheckpointWeights>(file);
}

}  // namespace llampi
