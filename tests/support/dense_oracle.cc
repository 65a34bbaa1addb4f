// Plain loops in double over the whole sequence; shares nothing with the engine but the ModelSpec.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>

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
    if (spec_.streams) return logits_of_streams(x);
    for (const model::LayerSpec& layer : spec_.layers) {
      const Rows input = normed(x, layer.attention_norm);
      add(x, std::visit([&](const auto& mixer) { return mixed(input, mixer); }, layer.mixer));
      add(x, mlp(normed(x, layer.mlp_norm), layer.dense()));
    }
    return product(normed(x, spec_.final_norm), spec_.head);
  }

 private:
  using Streams = std::vector<Rows>;

  Rows logits_of_streams(const Rows& embedded) {
    Streams x(static_cast<size_t>(spec_.streams->count), embedded);
    for (const model::LayerSpec& layer : spec_.layers) {
      around(x, *layer.attention_streams, [&](const Rows& input) {
        const Rows own = normed(input, layer.attention_norm);
        return std::visit([&](const auto& mixer) { return mixed(own, mixer); }, layer.mixer);
      });
      around(x, *layer.mlp_streams,
             [&](const Rows& input) { return mlp(normed(input, layer.mlp_norm), layer.dense()); });
    }
    Rows mean(embedded.size(), Vector(embedded.front().size()));
    for (const Rows& stream : x) add(mean, stream);
    for (Vector& row : mean)
      for (double& value : row) value /= static_cast<double>(x.size());
    return product(normed(mean, spec_.final_norm), spec_.head);
  }

  // The streams' input goes through the sublayer, and its output to all of them.
  template <class Sublayer>
  void around(Streams& x, const model::StreamsSpec& spec, Sublayer sublayer) const {
    const size_t n = x.size();
    Rows flat(x.front().size()), input(flat.size(), Vector(x.front().front().size()));
    for (size_t p = 0; p < flat.size(); ++p) {
      for (const Rows& stream : x) flat[p].insert(flat[p].end(), stream[p].begin(), stream[p].end());
      normalise(flat[p].data(), flat[p].size(), Vector(flat[p].size(), 1));
    }
    const Rows scores = product(flat, spec.scores);
    const Vector scale = model_.values(spec.scale), bias = model_.values(spec.bias);
    const auto eps = static_cast<double>(spec_.streams->epsilon);
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    Rows post(flat.size());
    std::vector<Rows> mixing(flat.size());  // [from][to]
    for (size_t p = 0; p < flat.size(); ++p) {
      const auto score = [&](size_t i, size_t part) { return scores[p][i] * scale[part] + bias[i]; };
      for (size_t i = 0; i < n; ++i) {
        post[p].push_back(2 * sigmoid(score(n + i, 1)));
        for (size_t c = 0; c < input[p].size(); ++c) input[p][c] += (sigmoid(score(i, 0)) + eps) * x[i][p][c];
      }
      Rows& c = mixing[p];
      for (size_t from = 0; from < n; ++from) {
        double sum = 0;
        Vector row;
        for (size_t to = 0; to < n; ++to) row.push_back(std::exp(score(2 * n + from * n + to, 2)));
        for (const double v : row) sum += v;
        for (double& v : row) v = v / sum + eps;
        c.push_back(row);
      }
      for (int turn = 1; turn < 2 * spec_.streams->iterations; ++turn)  // columns first, then rows
        for (size_t a = 0; a < n; ++a) {
          double sum = eps;
          for (size_t b = 0; b < n; ++b) sum += turn % 2 == 1 ? c[b][a] : c[a][b];
          for (size_t b = 0; b < n; ++b) (turn % 2 == 1 ? c[b][a] : c[a][b]) /= sum;
        }
    }
    const Rows output = sublayer(input);
    Streams next(n, output);
    for (size_t to = 0; to < n; ++to)
      for (size_t p = 0; p < output.size(); ++p)
        for (size_t i = 0; i < output[p].size(); ++i) {
          next[to][p][i] *= post[p][to];
          for (size_t from = 0; from < n; ++from) next[to][p][i] += mixing[p][from][to] * x[from][p][i];
        }
    x = std::move(next);
  }

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
        for (int n = 0; n < part.rows; ++n) {
          int row = n;
          if (const auto& g = part.groups) row = g->size * (n / g->count) + g->first + n % g->count;
          double sum = 0;
          for (size_t k = 0; k < cols; ++k) sum += x[p][k] * w[static_cast<size_t>(row) * cols + k];
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

  Rows mixed(const Rows& x, const model::AttentionSpec& a) {
    const auto d = static_cast<size_t>(a.head_dim);
    Rows q = product(x, a.qkv);
    prepare(q, 0, a.q_heads, a, a.q_norm);
    if (a.donor.empty()) {
      prepare(q, a.q_heads, a.kv_heads, a, a.k_norm);
      Rows kept;
      for (const Vector& row : q)
        kept.emplace_back(row.begin() + a.q_heads * a.head_dim,
                          row.begin() + (a.q_heads + 2 * a.kv_heads) * a.head_dim);
      kept_[a.name] = std::move(kept);
    }
    const Rows& kv = kept_.at(a.donor.empty() ? a.name : a.donor);
    Rows out(x.size(), Vector(static_cast<size_t>(a.q_heads) * d));
    for (size_t p = 0; p < x.size(); ++p) {
      for (size_t h = 0; h < static_cast<size_t>(a.q_heads); ++h) {
        const size_t kv_head = h * static_cast<size_t>(a.kv_heads) / static_cast<size_t>(a.q_heads);
        const size_t v_head = static_cast<size_t>(a.kv_heads) + kv_head;
        attend({q[p].data() + h * d, d}, kv, {first_key(a, p), p + 1}, {kv_head * d, v_head * d},
               static_cast<double>(a.scale), {out[p].data() + h * d, d});
      }
      const size_t gates = q[p].size() - out[p].size();  // where it has gates
      for (size_t i = 0; a.gated && i < out[p].size(); ++i) out[p][i] /= 1 + std::exp(-q[p][gates + i]);
    }
    return product(out, a.output);
  }

  struct Range {
    size_t begin, end;
  };
  // Where a row of keys and values has those of one head.
  struct Place {
    size_t k, v;
  };

  // Softmax attention of one query over rows `tokens` of `kv`; adds to `out`, whose size is that of a value.
  static void attend(std::span<const double> q, const Rows& kv, Range tokens, Place at, double scale,
                     std::span<double> out) {
    Vector weight;
    double largest = -1e300;
    for (size_t t = tokens.begin; t < tokens.end; ++t) {
      double score = 0;
      for (size_t i = 0; i < q.size(); ++i) score += q[i] * kv[t][at.k + i];
      weight.push_back(score * scale);
      largest = std::max(largest, weight.back());
    }
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - largest);
    for (size_t t = tokens.begin; t < tokens.end; ++t)
      for (size_t i = 0; i < out.size(); ++i) out[i] += weight[t - tokens.begin] / sum * kv[t][at.v + i];
  }

  static Rows columns(const Rows& x, size_t first, size_t count) {
    Rows y;
    for (const Vector& row : x)
      y.emplace_back(row.begin() + static_cast<ptrdiff_t>(first), row.begin() + static_cast<ptrdiff_t>(first + count));
    return y;
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

  Rows mixed(const Rows& x, const model::GatedDeltaSpec& g) const {
    const auto heads = static_cast<size_t>(g.shape.heads), key_heads = static_cast<size_t>(g.shape.key_heads),
               dk = static_cast<size_t>(g.shape.key_dim), dv = static_cast<size_t>(g.shape.value_dim),
               width = static_cast<size_t>(g.shape.conv_width), keys = key_heads * dk;
    const Rows in = product(x, g.input);
    const Vector rate = model_.values(g.decay), bias = model_.values(g.dt_bias), weight = model_.values(g.norm.tensor);
    Vector conv;
    for (const model::ConvolutionPart& part : g.conv) {
      const Vector more = model_.values(part.tensor);
      conv.insert(conv.end(), more.begin(), more.end());
    }
    const Rows q = convolved(in, conv, width, 0, keys), k = convolved(in, conv, width, keys, keys),
               v = convolved(in, conv, width, 2 * keys, heads * dv);
    const auto channels = static_cast<size_t>(g.shape.channels()), z_width = static_cast<size_t>(g.z_width()),
               a_width = static_cast<size_t>(g.a_width()), b_at = channels + z_width + a_width;
    Rows z = columns(in, channels, z_width), a = columns(in, channels + z_width, a_width);
    if (g.gate_rank > 0) z = product(z, g.z), a = product(a, g.a);
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    const auto floor = static_cast<double>(g.shape.decay_floor);
    // Of channel i of head h's key.
    const auto decay = [&](size_t p, size_t h, size_t i) {
      if (floor < 0) return std::exp(floor * sigmoid(std::exp(rate[h]) * (a[p][h * dk + i] + bias[h * dk + i])));
      return std::exp(-std::exp(rate[h]) * std::log1p(std::exp(a[p][h] + bias[h])));
    };
    Rows out(x.size(), Vector(heads * dv));
    for (size_t h = 0; h < heads; ++h) {
      const size_t kh = g.shape.tiled ? h % key_heads : h * key_heads / heads;
      std::vector<Vector> s(dv, Vector(dk));
      for (size_t p = 0; p < x.size(); ++p) {
        const Vector query = unit(&q[p][kh * dk], dk, 1 / std::sqrt(static_cast<double>(dk))),
                     key = unit(&k[p][kh * dk], dk, 1);
        const double beta = sigmoid(in[p][b_at + h]);
        Vector decays;
        for (size_t i = 0; i < dk; ++i) decays.push_back(decay(p, h, i));
        double* o = &out[p][h * dv];
        for (size_t j = 0; j < dv; ++j) {
          double seen = 0;
          for (size_t i = 0; i < dk; ++i) seen += (s[j][i] *= decays[i]) * key[i];
          for (size_t i = 0; i < dk; ++i) {
            s[j][i] += beta * (v[p][h * dv + j] - seen) * key[i];
            o[j] += s[j][i] * query[i];
          }
        }
        normalise(o, dv, weight);
        for (size_t j = 0; j < dv; ++j) {
          const double gate = z[p][h * dv + j];
          o[j] *= sigmoid(gate) * (g.sigmoid_gate ? 1 : gate);
        }
      }
    }
    return product(out, g.output);
  }

  // Keys and values of every head are made from the latents, as if there were no cache to spare.
  Rows mixed(const Rows& x, const model::LatentSpec& l) {
    const auto heads = static_cast<size_t>(l.shape.heads), nope = static_cast<size_t>(l.shape.nope_dim),
               turned = static_cast<size_t>(l.shape.rope_dim), dv = static_cast<size_t>(l.shape.value_dim),
               rank = static_cast<size_t>(l.shape.rank), narrow = static_cast<size_t>(l.latent_offset());
    const Rows in = product(x, l.input);
    Rows down, latent, pe;
    for (size_t p = 0; p < x.size(); ++p) {
      const auto at = [&](size_t column) { return in[p].begin() + static_cast<ptrdiff_t>(column); };
      down.emplace_back(in[p].begin(), at(narrow));
      latent.emplace_back(at(narrow), at(narrow + rank));
      pe.emplace_back(at(narrow + rank), at(narrow + rank + turned));
      if (turned > 0) turn(pe[p].data(), l.shape.rope_dim, spec_.ropes[static_cast<size_t>(l.rope)], p);
    }
    latent = normed(latent, l.latent_norm);
    Rows q = l.query_rank > 0 ? product(normed(down, l.query_norm), l.query) : down;
    const Vector w = model_.values(l.expansion.both);
    choose(l, in, q);
    Rows out(x.size(), Vector(heads * dv));
    for (size_t h = 0; h < heads; ++h) {
      Rows k(x.size()), v(x.size());
      for (size_t p = 0; p < x.size(); ++p) {
        double* head = q[p].data() + h * (nope + turned);
        if (turned > 0) turn(head + nope, l.shape.rope_dim, spec_.ropes[static_cast<size_t>(l.rope)], p);
        for (size_t row = 0; row < nope + dv; ++row) {
          double sum = 0;
          for (size_t i = 0; i < rank; ++i) sum += w[(h * (nope + dv) + row) * rank + i] * latent[p][i];
          (row < nope ? k : v)[p].push_back(sum);
        }
        k[p].insert(k[p].end(), pe[p].begin(), pe[p].end());
      }
      for (size_t p = 0; p < x.size(); ++p) {
        Rows kv;  // key, value of the tokens that are read
        for (const size_t t : read_[p]) {
          kv.push_back(k[t]);
          kv.back().insert(kv.back().end(), v[t].begin(), v[t].end());
        }
        const size_t d = nope + turned;
        Vector read(dv);
        attend({q[p].data() + h * d, d}, kv, {0, kv.size()}, {0, d}, static_cast<double>(l.scale), read);
        std::ranges::copy(read, out[p].begin() + static_cast<ptrdiff_t>(h * dv));
      }
    }
    return product(out, l.output);
  }

  // Sets read_ for the layer.
  void choose(const model::LatentSpec& l, const Rows& in, const Rows& q) {
    if (l.reads_last_choice) return;
    read_.assign(in.size(), {});
    if (l.indexer) return score(l, in, q);
    for (size_t p = 0; p < in.size(); ++p)
      for (size_t t = 0; t <= p; ++t) read_[p].push_back(t);
  }

  void score(const model::LatentSpec& l, const Rows& in, const Rows& q) {
    const model::PooledIndexSpec& index = *l.indexer;
    const auto pool = static_cast<size_t>(index.shape.pool), dim = static_cast<size_t>(index.shape.dim),
               heads = static_cast<size_t>(index.shape.heads);
    const size_t keys_at = static_cast<size_t>(l.query_rank + l.shape.row_dim()),
                 weights_at = keys_at + (pool > 1 ? 2 : 1) * dim, queries_at = static_cast<size_t>(l.query_rows());
    const Rows keys = pooled_keys(index, in, keys_at);
    for (size_t p = 0; p < in.size(); ++p) {
      const size_t complete = (p + 1) / pool;
      std::vector<std::pair<double, size_t>> order;  // by falling score, then by position
      for (size_t j = 0; j < complete; ++j) {
        double score = 0;
        for (size_t h = 0; h < heads; ++h) {
          Vector query(q[p].begin() + static_cast<ptrdiff_t>(queries_at + h * dim),
                       q[p].begin() + static_cast<ptrdiff_t>(queries_at + (h + 1) * dim));
          turn_index(index, query, p);
          double dot = 0;
          for (size_t i = 0; i < dim; ++i) dot += query[i] * keys[j][i];
          score += in[p][weights_at + h] * std::max(dot, 0.0);
        }
        order.emplace_back(-score, j);
      }
      std::ranges::sort(order);
      order.resize(std::min(order.size(), static_cast<size_t>(index.shape.top_k) / pool));
      for (const auto& [score, j] : order)
        for (size_t t = j * pool; t < (j + 1) * pool; ++t) read_[p].push_back(t);
      for (size_t t = complete * pool; t <= p; ++t) read_[p].push_back(t);
    }
  }

  void turn_index(const model::PooledIndexSpec& index, Vector& head, size_t position) const {
    if (index.rope < 0) return;
    const kernels::RopeParameters& rope = spec_.ropes[static_cast<size_t>(index.rope)];
    turn(head.data(), rope.rotary_dim, rope, position);
  }

  // Of all pools that are complete.
  Rows pooled_keys(const model::PooledIndexSpec& index, const Rows& in, size_t keys_at) const {
    const auto pool = static_cast<size_t>(index.shape.pool), dim = static_cast<size_t>(index.shape.dim);
    const Vector weight = model_.values(index.norm_weight), bias = model_.values(index.norm_bias),
                 by_place = pool > 1 ? model_.values(index.position_bias) : Vector();
    Rows keys;
    for (size_t j = 0; j < in.size() / pool; ++j) {
      Vector sum(dim), total(dim);
      for (size_t i = 0; i < pool; ++i) {
        const double* x = in[j * pool + i].data() + keys_at;
        double mean = 0, variance = static_cast<double>(index.norm_epsilon);
        for (size_t c = 0; c < dim; ++c) mean += x[c] / static_cast<double>(dim);
        for (size_t c = 0; c < dim; ++c) variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(dim);
        Vector key(dim);
        for (size_t c = 0; c < dim; ++c) key[c] = (x[c] - mean) / std::sqrt(variance) * weight[c] + bias[c];
        turn_index(index, key, j * pool + i);
        for (size_t c = 0; c < dim; ++c) {
          const double a = pool > 1 ? std::exp(x[dim + c] + by_place[i * dim + c]) : 1;
          total[c] += a;
          sum[c] += a * key[c];
        }
      }
      for (size_t c = 0; c < dim; ++c) sum[c] /= total[c];
      keys.push_back(std::move(sum));
    }
    return keys;
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
  std::map<std::string, Rows> kept_;       // keys and values, by layer
  std::vector<std::vector<size_t>> read_;  // by position: the tokens that the latent layer reads
};

}  // namespace

std::vector<std::vector<double>> dense_logits(const SyntheticModel& model, std::span<const TokenId> tokens) {
  return Oracle(model).logits(tokens);
}

}  // namespace quire::test
