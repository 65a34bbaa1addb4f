#include "kernels/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/lane_sum.h"
#include "kernels/math.h"

namespace quire::kernels {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kLeastSum = 1e-20F;  // so that scores which are all zero stay it

float row_sum(std::span<const float> x) {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); i++) lanes[i % 16] += x[i];
  return sum_of_lanes(lanes);
}

// The `count` greatest numbers' places in the order of the numbers, of equal ones the lower first.
void greatest(std::span<const float> x, int count, std::span<int> places) {
  int held = 0;
  for (int i = 0; i < std::ssize(x); i++) {
    const float value = x[static_cast<size_t>(i)];
    int at = held;
    while (at > 0 && x[static_cast<size_t>(places[static_cast<size_t>(at) - 1])] < value) at--;
    if (at == count) continue;
    held = std::min(held + 1, count);
    std::copy_backward(places.begin() + at, places.begin() + held - 1, places.begin() + held);
    places[static_cast<size_t>(at)] = i;
  }
}

// Scores of groups that are not chosen become kNone.
void keep_groups(const RouterShape& shape, std::span<float> scores) {
  const size_t size = scores.size() / static_cast<size_t>(shape.groups);
  std::array<float, kMostExperts> sums;
  std::array<int, kMostExperts> places;
  const auto members = [&](int g) { return scores.subspan(static_cast<size_t>(g) * size, size); };
  for (int g = 0; g < shape.groups; g++) {
    greatest(members(g), shape.group_best, places);
    float sum = 0;
    for (int i = 0; i < shape.group_best; i++) sum += members(g)[static_cast<size_t>(places[static_cast<size_t>(i)])];
    sums[static_cast<size_t>(g)] = sum;
  }
  greatest({sums.data(), static_cast<size_t>(shape.groups)}, shape.chosen_groups, places);
  const auto kept = std::span(places).first(static_cast<size_t>(shape.chosen_groups));
  for (int g = 0; g < shape.groups; g++)
    if (std::ranges::find(kept, g) == kept.end()) std::ranges::fill(members(g), kNone);
}

// What weights are proportional to. Softmax: without its denominator.
void set_scores(const RouterShape& shape, std::span<const float> logits, std::span<float> scores) {
  if (shape.scoring == Scoring::kSigmoid) {
    std::ranges::transform(logits, scores.begin(), [](float x) { return sigmoid(x); });
    return;
  }
  const float most = std::ranges::max(logits);
  std::ranges::transform(logits, scores.begin(), [most](float x) { return exp(x - most); });
}

}  // namespace

Result<void> check_router_shape(const RouterShape& s) {
  const auto bad = [](const char* name, int value, const std::string& want) {
    return fail(ErrorKind::kUnsupported, fmt::format("{} {} is not supported; it must be {}", name, value, want), name);
  };
  if (s.experts < 1 || s.experts > kMostExperts)
    return bad("num_experts", s.experts, fmt::format("1 to {}", kMostExperts));
  if (s.groups < 1 || s.experts % s.groups != 0)
    return bad("n_group", s.groups, fmt::format("a divisor of the {} experts", s.experts));
  if (s.chosen_groups < 1 || s.chosen_groups > s.groups)
    return bad("topk_group", s.chosen_groups, fmt::format("1 to the {} groups", s.groups));
  const int size = s.experts / s.groups;
  if (s.group_best < 1 || s.group_best > size)
    return bad("n_group", s.groups, fmt::format("of groups that have {} experts at least", s.group_best));
  const int most = std::min(kMostChosen, s.chosen_groups * size);
  if (s.chosen < 1 || s.chosen > most) return bad("num_experts_per_tok", s.chosen, fmt::format("1 to {}", most));
  if (!(s.scaling > 0 && std::isfinite(s.scaling)))
    return fail(ErrorKind::kUnsupported, "routed_scaling_factor must be a positive number", "routed_scaling_factor");
  return {};
}

void route(const RouterShape& shape, const float* logits, const float* correction, Route* out) {
  const auto count = static_cast<size_t>(shape.experts), chosen = static_cast<size_t>(shape.chosen);
  std::array<float, kMostExperts> score_room, choice_room;
  const auto scores = std::span(score_room).first(count), choice = std::span(choice_room).first(count);
  set_scores(shape, {logits, count}, scores);
  // Scores grow with logits, but may round to the same number.
  const bool by_logits = correction == nullptr && shape.groups == 1;
  bool is_nan = false;
  for (size_t e = 0; e < count; e++) {
    choice[e] = (by_logits ? logits[e] : scores[e]) + (correction == nullptr ? 0 : correction[e]);
    is_nan |= std::isnan(choice[e]) || std::isnan(logits[e]);
  }
  std::array<int, kMostChosen> places;
  if (is_nan) {
    for (size_t i = 0; i < chosen; i++) out[i] = {static_cast<int>(i), std::numeric_limits<float>::quiet_NaN()};
    return;
  }
  if (shape.groups > 1) keep_groups(shape, choice);
  greatest(choice, shape.chosen, places);
  std::sort(places.begin(), places.begin() + shape.chosen);

  float sum = 0;
  for (size_t i = 0; i < chosen; i++) {
    out[i] = {places[i], scores[static_cast<size_t>(places[i])]};
    sum += out[i].weight;
  }
  if (shape.scoring == Scoring::kSigmoid)
    sum = shape.renormalise ? sum + kLeastSum : 1;
  else if (!shape.renormalise)
    sum = row_sum(scores);
  for (size_t i = 0; i < chosen; i++) out[i].weight = out[i].weight / sum * shape.scaling;
}

}  // namespace quire::kernels
