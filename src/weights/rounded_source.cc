#include "weights/rounded_source.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "weights/quantise.h"

namespace quire::weights {

class RoundedSource::Rows final : public RowSource {
 public:
  Rows(const Tensor& from, WeightFormat to) : from_(from), to_(to) {}

  void make_row(int64_t n, std::span<std::byte> blocks) const override {
    std::vector<std::byte> scratch(from_.made == nullptr ? 0 : from_.row_bytes());
    const std::span<const std::byte> row = from_.row(n, scratch);
    const auto from_bytes = static_cast<size_t>(format_info(from_.format).block_bytes) * kQuantisedBlock;
    const auto to_bytes = static_cast<size_t>(format_info(to_).block_bytes);
    std::array<float, kQuantisedBlock> numbers;
    for (size_t i = 0; i < blocks.size() / to_bytes; ++i) {
      dequantise(from_.format, row.subspan(i * from_bytes, from_bytes), numbers);
      quantise_block(to_, numbers, blocks.subspan(i * to_bytes, to_bytes));
    }
  }

  void add_to_digest(Sha256& hash) const override {
    const std::string method = fmt::format("{} of ", kQuantiseMethod);
    hash.update(std::as_bytes(std::span(method)));
    weights::add_to_digest(from_, hash);
  }

 private:
  const Tensor& from_;
  WeightFormat to_;
};

RoundedSource::RoundedSource(std::unique_ptr<TensorSource> from, const Formats& formats) : from_(std::move(from)) {
  for (const Tensor& tensor : from_->tensors()) {
    const auto format = formats.find(tensor.name);
    if (format == formats.end()) {
      tensors_.push_back(tensor);
      continue;
    }
    QUIRE_CHECK(can_quantise(tensor));
    rows_.push_back(std::make_unique<Rows>(tensor, format->second));
    tensors_.push_back(
        {.name = tensor.name, .format = format->second, .shape = tensor.shape, .made = rows_.back().get()});
  }
  for (const Tensor& tensor : tensors_)
    if (formats.contains(tensor.name)) quantised_.emplace(tensor.name, &tensor);
}

RoundedSource::~RoundedSource() = default;

const Tensor* RoundedSource::find(std::string_view name) const {
  const auto quantised = quantised_.find(name);
  return quantised == quantised_.end() ? from_->find(name) : quantised->second;
}

Result<const Tensor*> RoundedSource::require(std::string_view name) const {
  const auto quantised = quantised_.find(name);
  return quantised == quantised_.end() ? from_->require(name) : quantised->second;
}

bool can_quantise(const Tensor& tensor) {
  return !is_quantised(tensor.format) && !tensor.shape.empty() && tensor.shape.back() % kQuantisedBlock == 0;
}

}  // namespace quire::weights
