// For tests: a step of several sequences in one paged cache, run by the kernels and by the oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_oracle.h"
#include "kernels/gemm_oracle.h"
#include "kernels/test_tables.h"

namespace quire::kernels {

// Sequences in one cache and what the oracle says of every query row. Rows of the step lie in the given order of
// sequences, with one row of padding before each, and strides are wider than the rows.
class AttentionWorld {
 public:
  struct Sequence {
    std::vector<int32_t> blocks;
    std::vector<int32_t> pages;
    DenseTokens tokens;
    int64_t first = 0;
    int rows = 0;
    int first_row = 0;
  };

  AttentionWorld(const AttentionShape& shape, int block_tokens, int gap, unsigned seed = 1)
      : shape_(shape), rng_(seed), cache_(shape, 4000 / block_tokens + 20, block_tokens, gap) {
    options_.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  }

  // `rows` query tokens behind `first` earlier ones, all written through `table`. The first `shared` tokens, whole
  // blocks, are those of sequence `of`. Blocks that no row of the step can see become null.
  void add(const KernelTable& table, int64_t first, int rows, int of = -1, int64_t shared = 0) {
    add(table, random_tokens(shape_, first + rows, rng_), first, rows, of, shared);
  }
  void add(const KernelTable& table, DenseTokens dense, int64_t first, int rows, int of = -1, int64_t shared = 0) {
    Sequence s;
    const int64_t tokens = first + rows, block = cache_.view().block_tokens;
    s.first = first;
    s.rows = rows;
    s.first_row = rows_ + 1;
    s.tokens = std::move(dense);
    if (of >= 0) {
      const Sequence& from = sequences_[static_cast<size_t>(of)];
      s.blocks.assign(from.blocks.begin(), from.blocks.begin() + shared / block);
      const auto n = static_cast<ptrdiff_t>(shared * shape_.kv_heads * shape_.head_dim);
      std::copy_n(from.tokens.k.begin(), n, s.tokens.k.begin());
      std::copy_n(from.tokens.v.begin(), n, s.tokens.v.begin());
    }
    const auto own = cache_.take(tokens - shared);
    s.blocks.insert(s.blocks.end(), own.begin(), own.end());
    ThreadPool pool(2);
    cache_.write(table, s.blocks, s.tokens, shared, tokens, pool);
    int64_t seen = 0;
    if (shape_.window > 0) seen = std::max(seen, first - shape_.window + 1);
    if (shape_.chunk > 0) seen = std::max(seen, first / shape_.chunk * shape_.chunk);
    auto visible = s.blocks;
    for (int64_t b = 0; (b + 1) * block <= seen; b++) visible[static_cast<size_t>(b)] = 0;
    s.pages = cache_.pages(visible);
    rows_ += rows + 1;
    sequences_.push_back(std::move(s));
  }

  void set_options(float soft_cap, bool sinks) {
    options_.soft_cap = soft_cap;
    sinks_ = random_numbers(static_cast<size_t>(shape_.q_heads), rng_);
    options_.sinks = sinks ? sinks_.data() : nullptr;
  }

  // All rows of the step by these kernels; `only` one sequence if it is not negative.
  std::vector<float> run(const KernelTable& table, int threads, int only = -1) {
    std::vector<AttentionSequence> sequences;
    for (size_t i = 0; i < sequences_.size(); i++) {
      const Sequence& s = sequences_[i];
      if (only >= 0 && only != static_cast<int>(i)) continue;
      sequences.push_back({.pages = s.pages, .first_row = s.first_row, .num_rows = s.rows, .first_position = s.first});
    }
    return run_parts(table, sequences, threads);
  }

  std::vector<float> run_parts(const KernelTable& table, std::span<const AttentionSequence> sequences, int threads) {
    make_queries();
    AttentionPlan plan;
    plan.build(table, shape_, sequences, threads);
    std::vector<float> out(static_cast<size_t>(rows_) * stride(), kUntouched);
    ThreadPool pool(threads);
    for (int again = 0; again < 2; again++)  // the workspace may hold anything
      attend(table, plan, cache_.view(),
             {.q = q_.data(),
              .out = out.data(),
              .q_stride = stride(),
              .out_stride = stride(),
              .scale = options_.scale,
              .soft_cap = options_.soft_cap,
              .sinks = options_.sinks},
             workspace_, pool);
    return out;
  }

  const std::vector<float>& oracle() {
    if (!oracle_.empty()) return oracle_;
    make_queries();
    oracle_.assign(static_cast<size_t>(rows_) * stride(), kUntouched);
    for (const Sequence& s : sequences_)
      for (int t = 0; t < s.rows; t++)
        for (int h = 0; h < shape_.q_heads; h++) {
          const size_t at = static_cast<size_t>(s.first_row + t) * stride() + static_cast<size_t>(h * shape_.head_dim);
          const auto o = attention_oracle(shape_, s.tokens, q_.data() + at, h, s.first + t, options_);
          std::copy(o.begin(), o.end(), oracle_.begin() + static_cast<ptrdiff_t>(at));
        }
    return oracle_;
  }

  // Differing rows, described; empty if none.
  std::string compare(const std::vector<float>& got) {
    const auto& want = oracle();
    const int width = shape_.q_heads * shape_.head_dim;
    std::string bad;
    for (size_t row = 0; row < static_cast<size_t>(rows_); row++) {
      const auto* from = &want[row * stride()];
      const auto where = oracle::difference(from, &got[row * stride()], static_cast<size_t>(width), width);
      if (!where.empty()) bad += "step's row " + std::to_string(row) + ": " + where + "\n";
    }
    return bad;
  }

  void expect_same_everywhere(const std::string& what) {
    for (const KernelTable& table : test_tables())
      for (const int threads : {1, 2, 3}) {
        if (table.isa == Isa::kScalar && threads != 2) continue;  // slow
        EXPECT_EQ(compare(run(table, threads)), "")
            << what << ", " << name_of(table.isa) << (table.native_bf16 ? " native" : "") << ", " << threads
            << " threads";
      }
  }

  const std::vector<Sequence>& sequences() const { return sequences_; }
  const TestCache& cache() const { return cache_; }
  size_t stride() const { return static_cast<size_t>(shape_.q_heads * shape_.head_dim) + 7; }

 private:
  static constexpr float kUntouched = 12345.0F;

  void make_queries() {
    if (q_.empty()) q_ = random_numbers(static_cast<size_t>(rows_) * stride(), rng_);
  }

  AttentionShape shape_;
  std::mt19937 rng_;
  TestCache cache_;
  OracleOptions options_;
  std::vector<float> sinks_;
  std::vector<Sequence> sequences_;
  int rows_ = 0;
  std::vector<float> q_;
  std::vector<float> oracle_;
  AttentionWorkspace workspace_;
};

inline AttentionShape shape_of(int head_dim, int page, int group, int kv_heads = 1, DType dtype = DType::kBF16) {
  return {.q_heads = group * kv_heads, .kv_heads = kv_heads, .head_dim = head_dim, .page_tokens = page, .dtype = dtype};
}

}  // namespace quire::kernels
