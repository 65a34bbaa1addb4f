#include "kernels/residual_streams.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/math.h"
#include "kernels/shape_check.h"

namespace quire::kernels {
namespace {

// Between the streams: from, to.
struct Mixing {
  int count;
  float c[kMostStreams][kMostStreams];

  void soften(int from) {
    float* row = c[from];
    float most = row[0], sum = 0;
    for (int to = 1; to < count; to++) most = row[to] > most ? row[to] : most;
    for (int to = 0; to < count; to++) {
      row[to] = exp(row[to] - most);
      sum += row[to];
    }
    for (int to = 0; to < count; to++) row[to] /= sum;
  }

  void divide_rows(float epsilon) {
    for (int from = 0; from < count; from++) {
      float sum = 0;
      for (int to = 0; to < count; to++) sum += c[from][to];
      for (int to = 0; to < count; to++) c[from][to] /= sum + epsilon;
    }
  }

  void divide_columns(float epsilon) {
    for (int to = 0; to < count; to++) {
      float sum = 0;
      for (int from = 0; from < count; from++) sum += c[from][to];
      for (int from = 0; from < count; from++) c[from][to] /= sum + epsilon;
    }
  }
};

}  // namespace

Result<void> check_stream_shape(const StreamShape& s) {
  if (auto ok = check_ranges("residual streams",
                             {{"streams", s.count, 2, kMostStreams}, {"iterations", s.iterations, 1, 100}});
      !ok)
    return ok;
  if (s.epsilon >= 0 && s.epsilon < 1) return {};
  return fail(ErrorKind::kUnsupported,
              fmt::format("residual streams: epsilon must be from 0 to below 1, not {}", s.epsilon), "epsilon");
}

void stream_factors(const StreamShape& s, const float* scores, const float* scale, const float* bias, float* out) {
  const int n = s.count;
  float pre[kMostStreams], post[kMostStreams];
  Mixing mixing{.count = n, .c = {}};
  for (int i = 0; i < n; i++) {
    pre[i] = sigmoid(scores[i] * scale[0] + bias[i]) + s.epsilon;
    post[i] = 2 * sigmoid(scores[n + i] * scale[1] + bias[n + i]);
  }
  for (int from = 0; from < n; from++) {
    const int first = 2 * n + from * n;
    for (int to = 0; to < n; to++) mixing.c[from][to] = scores[first + to] * scale[2] + bias[first + to];
    mixing.soften(from);
    for (int to = 0; to < n; to++) mixing.c[from][to] += s.epsilon;
  }
  mixing.divide_columns(s.epsilon);
  for (int i = 1; i < s.iterations; i++) {
    mixing.divide_rows(s.epsilon);
    mixing.divide_columns(s.epsilon);
  }
  out = std::copy_n(pre, n, out);
  for (int to = 0; to < n; to++) {
    for (int from = 0; from < n; from++) *out++ = mixing.c[from][to];
    *out++ = post[to];
  }
}

}  // namespace quire::kernels
