// Plain loops in double over the whole sequence; shares nothing with the engine but the ModelSpec.
#include <cmath>
#include <map>

#include "support/synthetic_model.h"

namespace quire::test {
namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;  // by position

class Oracle {
 public:
  explicit Oracle(const SyntheticModel& model) : model_(model), spec_(model.spec()) {}

  Rows logits(std::span<const TokenId> tokens) {
    const Vector embedding = model_.values(spec_.embedding);
    const auto width = static_cast<size_t>(spec_.hidden_size);
    Rows x;
    for (const TokenId token : tokens) {
      const auto* row = embedding.data() + static_cast<size_t>(token) * width;
      x.emplace_back(row, row + width);
    }
    for (const model::LayerSpec& layer : spec_.layers) {
      const Rows input = normed(x, layer.attention_norm);
      const auto* attends = std::get_if<model::AttentionSpec>(&layer.mixer);
      add(x, attends != nullptr ? attention(input, *attends)
                                : gated_delta(input, std::get<model::GatedDeltaSpec>(layer.mixer)));
      add(x, mlp(normed(x, layer.mlp_norm), layer.mlp));
    }
    return product(normed(x, spec_.final_norm), spec_.head);
  }

 private:
  static void add(Rows& x, const Rows& y) {
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t i = 0; i < x[p].size(); ++i) x[p][i] += y[p][i];
  }

  // In place, `size` numbers.
  void normalise(double* x, size_t size, const Vector& weight) const {
    double squares = 0;
    for (size_t i = 0; i < size; ++i) squares += x[i] * x[i];
    const double factor = 1 / std::sqrt(squares / static_cast<double>(size) + static_cast<double>(spec_.norm_epsilon));
    for (size_t i = 0; i < size; ++i) x[i] *= factor * weight[i];
  }

  Rows normed(Rows x, const model::NormSpec& norm) const {
    const Vector weight = model_.values(norm.tensor);
    for (Vector& row : x) normalise(row.data(), row.size(), weight);
    return x;
  }

  Rows product(const Rows& x, const model::MatrixSpec& matrix) const {
    Rows y(x.size());
    for (const model::MatrixPart& part : matrix.parts) {
      const Vector w = model_.values(part.tensor);
      const auto cols = static_cast<size_t>(matrix.cols);
      for (size_t p = 0; p < x.size(); ++p) {
        for (size_t n = 0; n < static_cast<size_t>(part.rows); ++n) {
          double sum = 0;
          for (size_t k = 0; k < cols; ++k) sum += x[p][k] * w[n * cols + k];
          y[p].push_back(sum);
        }
      }
    }
    return y;
  }

  void turn(double* head, int size, const kernels::RopeParameters& rope, size_t position) const {
    const int half = size / 2;
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * std::pow(rope.theta, -2.0 * i / size);
      const double a = head[i], b = head[half + i];
      head[i] = a * std::cos(angle) - b * std::sin(angle);
      head[half + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  // Heads [first, first + count) of every row: norm, then rope.
  void prepare(Rows& rows, int first, int count, const model::AttentionSpec& a, const model::NormSpec& norm) const {
    const Vector weight = model_.values(norm.tensor);
    const auto d = static_cast<size_t>(a.head_dim);
    for (size_t p = 0; p < rows.size(); ++p) {
      for (int h = first; h < first + count; ++h) {
        double* head = rows[p].data() + static_cast<size_t>(h) * d;
        normalise(head, d, weight);
        turn(head, a.head_dim, spec_.ropes[static_cast<size_t>(a.rope)], p);
      }
    }
  }

  // The first key that a query at `position` sees.
  static size_t first_key(const model::AttentionSpec& a, size_t position) {
    size_t first = 0;
    if (a.window > 0 && position + 1 > static_cast<size_t>(a.window))
      first = position + 1 - static_cast<size_t>(a.window);
    if (a.chunk > 0) first = position - position % static_cast<size_t>(a.chunk);
    return first;
  }

  Rows attention(const Rows& x, const model::AttentionSpec& a) {
    const auto d = static_cast<size_t>(a.head_dim);
    Rows q = product(x, a.qkv);
    prepare(q, 0, a.q_heads, a, a.q_norm);
    if (a.donor.empty()) {
      prepare(q, a.q_heads, a.kv_heads, a, a.k_norm);
      Rows kept;
      for (const Vector& row : q) kept.emplace_back(row.begin() + a.q_heads * a.head_dim, row.end());
      kept_[a.name] = std::move(kept);
    }
    const Rows& kv = kept_.at(a.donor.empty() ? a.name : a.donor);
    Rows out(x.size(), Vector(static_cast<size_t>(a.q_heads) * d));
    for (size_t p = 0; p < x.size(); ++p) {
      for (size_t h = 0; h < static_cast<size_t>(a.q_heads); ++h) {
        const size_t kv_head = h * static_cast<size_t>(a.kv_heads) / static_cast<size_t>(a.q_heads);
        const size_t v_head = static_cast<size_t>(a.kv_heads) + kv_head;
        attend(q[p].data() + h * d, kv, {first_key(a, p), p + 1}, kv_head * d, v_head * d, d,
               static_cast<double>(a.scale), out[p].data() + h * d);
      }
    }
    return product(out, a.output);
  }

  struct Keys {
    size_t begin, end;
  };

  static void attend(const double* q, const Rows& kv, Keys keys, size_t k_at, size_t v_at, size_t d, double scale,
                     double* out) {
    Vector weight;
    double largest = -1e300;
    for (size_t t = keys.begin; t < keys.end; ++t) {
      double score = 0;
      for (size_t i = 0; i < d; ++i) score += q[i] * kv[t][k_at + i];
      weight.push_back(score * scale);
      largest = std::max(largest, weight.back());
    }
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - largest);
    for (size_t t = keys.begin; t < keys.end; ++t)
      for (size_t i = 0; i < d; ++i) out[i] += weight[t - keys.begin] / sum * kv[t][v_at + i];
  }

  // The columns [first, first + count) of every row, convolved over time with silu behind.
  Rows convolved(const Rows& x, const Vector& w, size_t width, size_t first, size_t count) const {
    Rows y(x.size(), Vector(count));
    for (size_t p = 0; p < x.size(); ++p) {
      for (size_t c = 0; c < count; ++c) {
        double sum = 0;
        for (size_t back = 0; back < width && back <= p; ++back)
          sum += w[(first + c) * width + width - 1 - back] * x[p - back][first + c];
        y[p][c] = sum / (1 + std::exp(-sum));
      }
    }
    return y;
  }

  static Vector unit(const double* x, size_t n, double factor) {
    double squares = 1e-6;
    for (size_t i = 0; i < n; ++i) squares += x[i] * x[i];
    Vector y(x, x + n);
    for (double& v : y) v *= factor / std::sqrt(squares);
    return y;
  }

  Rows gated_delta(const Rows& x, const model::GatedDeltaSpec& g) const {
    const auto heads = static_cast<size_t>(g.shape.heads), dk = static_cast<size_t>(g.shape.key_dim),
               dv = static_cast<size_t>(g.shape.value_dim), width = static_cast<size_t>(g.shape.conv_width);
    const Rows in = product(x, g.input);
    const Vector conv = model_.values(g.conv), rate = model_.values(g.decay), bias = model_.values(g.dt_bias),
                 weight = model_.values(g.norm.tensor);
    const Rows q = convolved(in, conv, width, 0, heads * dk), k = convolved(in, conv, width, heads * dk, heads * dk),
               v = convolved(in, conv, width, 2 * heads * dk, heads * dv);
    const size_t z_at = heads * (2 * dk + dv), a_at = z_at + heads * dv, b_at = a_at + heads;
    Rows out(x.size(), Vector(heads * dv));
    for (size_t h = 0; h < heads; ++h) {
      std::vector<Vector> s(dv, Vector(dk));
      for (size_t p = 0; p < x.size(); ++p) {
        const Vector qh = unit(&q[p][h * dk], dk, 1 / std::sqrt(static_cast<double>(dk))),
                     kh = unit(&k[p][h * dk], dk, 1);
        const double decay = std::exp(-std::exp(rate[h]) * std::log1p(std::exp(in[p][a_at + h] + bias[h])));
        const double beta = 1 / (1 + std::exp(-in[p][b_at + h]));
        double* o = &out[p][h * dv];
        for (size_t j = 0; j < dv; ++j) {
          double seen = 0;
          for (size_t i = 0; i < dk; ++i) seen += (s[j][i] *= decay) * kh[i];
          for (size_t i = 0; i < dk; ++i) {
            s[j][i] += beta * (v[p][h * dv + j] - seen) * kh[i];
            o[j] += s[j][i] * qh[i];
          }
        }
        normalise(o, dv, weight);
        for (size_t j = 0; j < dv; ++j) {
          const double z = in[p][z_at + h * dv + j];
          o[j] *= z / (1 + std::exp(-z));
        }
      }
    }
    return product(out, g.output);
  }

  Rows mlp(const Rows& x, const model::MlpSpec& mlp) const {
    const auto n = static_cast<size_t>(mlp.size);
    Rows h = product(x, mlp.gate_up);
    for (Vector& row : h) {
      for (size_t i = 0; i < n; ++i) row[i] = row[i] / (1 + std::exp(-row[i])) * row[n + i];
      row.resize(n);
    }
    return product(h, mlp.down);
  }

  const SyntheticModel& model_;
  const model::ModelSpec& spec_;
  std::map<std::string, Rows> kept_;  // keys and values, by layer
};

}  // namespace

std::vector<std::vector<double>> dense_logits(const SyntheticModel& model, std::span<const TokenId> tokens) {
  return Oracle(model).logits(tokens);
}

}  // namespace quire::test
