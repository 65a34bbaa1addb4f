// What a lossy option costs in quality: the same tokens through two engines of one model, position by position.
//
//   quality_bench MODEL GOLDEN [--quantization int8|int4] [--lm-head-quantization none|int8]
//                 [--dtype bfloat16|float32] [--tokens N]
//
// GOLDEN is a file whose `nll.ids` are the tokens (tests/golden/models/real_*/golden.json), N of them at most. The
// reference is the same model with no option. Prints the mean negative log-likelihood of both, the mean
// Kullback-Leibler divergence from the reference, and how often both hold the same token for the likeliest.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core.h"

namespace quire {
namespace {

[[noreturn]] void stop(const std::string& message) {
  fmt::print(stderr, "error: {}\n", message);
  std::exit(2);
}

// One engine at work on the tokens, which gives its logits position by position.
class Reader {
 public:
  Reader(const EngineOptions& options, std::span<const TokenId> tokens) {
    auto model = engine::LoadedModel::load(options);
    if (!model) stop(model.error().message);
    weight_bytes_ = (*model)->info.weight_bytes;
    auto core = engine::Core::create(std::move(*model), options);
    if (!core) stop(core.error().message);
    core_ = std::move(*core);
    core_->set_probe([this](RequestId, int64_t position, std::span<const float> logits) {
      logits_[position].assign(logits.begin(), logits.end());
    });
    Request request;
    request.prompt.assign(tokens.begin(), tokens.end());
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    request.sampling.prompt_logprobs = 0;
    if (auto valid = engine::validate_request(request, core_->info()); !valid) stop(valid.error().message);
    core_->add(RequestId(1), std::move(request), [](Update) {}, engine::Core::Clock::now());
  }

  // Log-probabilities of all tokens after `position`; every position is asked for once.
  std::vector<double> after(int64_t position) {
    while (!logits_.contains(position)) {
      if (!core_->has_work()) stop("the engine gives no logits of a position");
      if (auto stepped = core_->step(); !stepped) stop(stepped.error().message);
    }
    const std::vector<float> logits = std::move(logits_.extract(position).mapped());
    const double top = *std::ranges::max_element(logits);
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
    const double norm = top + std::log(sum);
    std::vector<double> all(logits.begin(), logits.end());
    for (double& x : all) x -= norm;
    return all;
  }

  size_t weight_bytes() const { return weight_bytes_; }

 private:
  std::unique_ptr<engine::Core> core_;
  std::map<int64_t, std::vector<float>> logits_;
  size_t weight_bytes_ = 0;
};

struct Arguments {
  EngineOptions options;
  std::string golden;
  size_t tokens = SIZE_MAX;
};

Arguments parse(int argc, char** argv) {
  if (argc < 3 || argc % 2 == 0) stop("usage: quality_bench MODEL GOLDEN [--OPTION VALUE]...");
  Arguments given{.options = {.model = argv[1], .kv_cache_bytes = size_t{256} << 20, .max_num_batched_tokens = 128},
                  .golden = argv[2]};
  for (int i = 3; i < argc; i += 2) {
    const std::string text = std::string(argv[i]) + " " + argv[i + 1];
    EngineOptions& o = given.options;
    if (text == "--quantization int8") {
      o.quantization = Quantization::kInt8;
    } else if (text == "--quantization int4") {
      o.quantization = Quantization::kInt4;
    } else if (text == "--lm-head-quantization none") {
      o.lm_head_quantization = LmHeadQuantization::kNone;
    } else if (text == "--lm-head-quantization int8") {
      o.lm_head_quantization = LmHeadQuantization::kInt8;
    } else if (text == "--dtype float32") {
      o.profile = Profile::kF32;
    } else if (text == "--dtype bfloat16") {
      o.profile = Profile::kBF16;
    } else if (text.starts_with("--tokens ")) {
      given.tokens = static_cast<size_t>(std::atol(argv[i + 1]));
    } else {
      stop("unknown: " + text);
    }
  }
  return given;
}

void measure(const Arguments& given) {
  std::ifstream file(given.golden);
  const auto golden = nlohmann::json::parse(file, nullptr, false);
  if (!golden.is_object() || !golden.contains("nll")) stop(given.golden + " is no golden file with nll");
  auto tokens = golden["nll"]["ids"].get<std::vector<TokenId>>();
  tokens.resize(std::min(tokens.size(), given.tokens));
  if (tokens.size() < 2) stop("--tokens must be at least 2");
  EngineOptions plain = given.options;
  plain.quantization = Quantization::kNone;
  plain.lm_head_quantization = LmHeadQuantization::kAuto;
  plain.profile = {};
  Reader reference(plain, tokens), measured(given.options, tokens);

  double nll[2] = {}, divergence = 0;
  int same = 0;
  const size_t count = tokens.size() - 1;
  for (size_t i = 0; i < count; ++i) {
    const auto want = reference.after(static_cast<int64_t>(i)), got = measured.after(static_cast<int64_t>(i));
    const auto next = static_cast<size_t>(tokens[i + 1]);
    nll[0] -= want[next];
    nll[1] -= got[next];
    for (size_t t = 0; t < want.size(); ++t) divergence += std::exp(want[t]) * (want[t] - got[t]);
    same += std::ranges::max_element(want) - want.begin() == std::ranges::max_element(got) - got.begin() ? 1 : 0;
  }
  const auto n = static_cast<double>(count);
  fmt::print(
      "{} tokens; reference {:.1f} MiB, nll {:.4f}; measured {:.1f} MiB, nll {:.4f} ({:+.4f}), KL {:.5f}, same {:.2f} "
      "%\n",
      count, static_cast<double>(reference.weight_bytes()) / (1 << 20), nll[0] / n,
      static_cast<double>(measured.weight_bytes()) / (1 << 20), nll[1] / n, (nll[1] - nll[0]) / n, divergence / n,
      100 * same / n);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { quire::measure(quire::parse(argc, argv)); }
