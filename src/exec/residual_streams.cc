#include "exec/residual_streams.h"

#include <algorithm>
#include <utility>

#include "kernels/row_ops.h"

namespace quire::exec {
namespace {

// Rows whose scores are made together.
constexpr int kBlockRows = 256;

// What a sublayer made comes beside the streams.
static_assert(kernels::kMostCombined == kernels::kMostStreams + 1);

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

}  // namespace

Result<ResidualStreams> ResidualStreams::make(const model::Model& model, const kernels::KernelTable& kernels,
                                              ThreadPool& pool, Allocator& allocator, int max_rows) {
  ResidualStreams s(model.spec, kernels, pool);
  const int block = std::min(max_rows, kBlockRows);
  const auto row = s.width() * sizeof(float);
  const std::pair<Buffer*, size_t> buffers[] = {
      {&s.streams_, static_cast<size_t>(max_rows) * row},
      {&s.normed_, static_cast<size_t>(block) * row},
      {&s.factors_, static_cast<size_t>(max_rows) * static_cast<size_t>(s.shape_.scores()) * sizeof(float)}};
  for (const auto& [buffer, size] : buffers) {
    auto memory = allocator.allocate(size);
    if (!memory) return std::unexpected(memory.error());
    *buffer = std::move(*memory);
  }
  if (auto ok = s.activations_.reserve(block, static_cast<int>(s.width()), allocator); !ok)
    return std::unexpected(ok.error());
  return s;
}

float* ResidualStreams::factors(int row) const {
  return floats(factors_) + static_cast<size_t>(row) * static_cast<size_t>(shape_.scores());
}

std::array<float*, kernels::kMostStreams + 1> ResidualStreams::streams(int row, float* x) const {
  std::array<float*, kernels::kMostStreams + 1> list = {};
  float* first = floats(streams_) + static_cast<size_t>(row) * width();
  const auto n = static_cast<size_t>(hidden_);
  for (size_t i = 0; i < static_cast<size_t>(shape_.count); ++i) list[i] = first + i * n;
  list[static_cast<size_t>(shape_.count)] = x + static_cast<size_t>(row) * n;
  return list;
}

void ResidualStreams::begin(const float* x, int rows) {
  pool_->split(rows, [&](int begin, int end) {
    const auto n = static_cast<size_t>(hidden_);
    for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r)
      for (size_t i = 0; i < static_cast<size_t>(shape_.count); ++i)
        std::copy_n(x + r * n, n, floats(streams_) + r * width() + i * n);
  });
}

void ResidualStreams::enter(const model::StreamsWeights& weights, int rows, float* x) {
  const auto n = static_cast<int>(width());
  for (int first = 0; first < rows; first += kBlockRows) {
    const int count = std::min(kBlockRows, rows - first);
    activations_.reshape(*kernels_, kernels::ActivationKind::kF32, count, n);
    pool_->split(count, [&](int begin, int end) {
      const float* from = floats(streams_) + static_cast<size_t>(first + begin) * width();
      float* to = floats(normed_) + static_cast<size_t>(begin) * width();
      kernels_->rows->rms_norm({from, width(), nullptr, epsilon_, end - begin, n, to, width()});
      activations_.set_rows(*kernels_, floats(normed_), width(), begin, end);
    });
    for (const auto& part : weights.scores.parts)
      kernels::gemm(*kernels_, part.matrix, activations_,
                    {.out = factors(first) + part.first_row, .stride = static_cast<size_t>(shape_.scores())}, *pool_);
  }
  pool_->split(rows, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      kernels::stream_factors(shape_, factors(r), weights.scale.data(), weights.bias.data(), factors(r));
      auto list = streams(r, x);
      kernels_->rows->combine(
          {list.data(), shape_.count, &list[static_cast<size_t>(shape_.count)], 1, factors(r), hidden_});
    }
  });
}

void ResidualStreams::leave(int rows, float* x) {
  pool_->split(rows, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      auto list = streams(r, x);
      kernels_->rows->combine(
          {list.data(), shape_.count + 1, list.data(), shape_.count, factors(r) + shape_.count, hidden_});
    }
  });
}

void ResidualStreams::end(int rows, float* x) {
  std::array<float, kernels::kMostStreams> parts = {};
  parts.fill(1 / static_cast<float>(shape_.count));
  pool_->split(rows, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      auto list = streams(r, x);
      kernels_->rows->combine(
          {list.data(), shape_.count, &list[static_cast<size_t>(shape_.count)], 1, parts.data(), hidden_});
    }
  });
}

}  // namespace quire::exec
