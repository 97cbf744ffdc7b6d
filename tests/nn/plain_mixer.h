// Mixers in plain loops, in double, as reference for the tests of mixers.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "aft/nn/heads.h"

namespace aft::nn {

using torch::Tensor;
using Numbers = std::vector<double>;
using Matrix = std::vector<Numbers>;

inline Numbers numbers(const Tensor& x) {
  const Tensor flat = x.detach().to(torch::kDouble).contiguous();
  return Numbers(flat.data_ptr<double>(),
                 flat.data_ptr<double>() + flat.numel());
}

inline Matrix rows_of(const Tensor& x) {
  Matrix rows;
  for (int64_t i = 0; i < x.size(0); ++i) rows.push_back(numbers(x[i]));
  return rows;
}

inline Tensor tensor_of(const Matrix& rows) {
  std::vector<Tensor> all;
  for (const Numbers& row : rows)
    all.push_back(torch::tensor(row, torch::kDouble));
  return torch::stack(all);
}

/// W x_t + b for all t.
inline Matrix affine(const torch::nn::Linear& layer, const Matrix& x) {
  const Matrix w = rows_of(layer->weight);
  Matrix y(x.size(),
           layer->bias.defined() ? numbers(layer->bias) : Numbers(w.size(), 0));
  for (size_t t = 0; t < x.size(); ++t)
    for (size_t i = 0; i < w.size(); ++i)
      for (size_t j = 0; j < x[t].size(); ++j) y[t][i] += w[i][j] * x[t][j];
  return y;
}

/// Replaces scores by their softmax. Returns the logsumexp.
inline double softmax(Numbers& s) {
  double top = -INFINITY, sum = 0;
  for (double x : s) top = std::max(top, x);
  for (double& x : s) sum += x = std::exp(x - top);
  for (double& x : s) x /= sum;
  return top + std::log(sum);
}

/// Whether position t sees j.
using Sees = std::function<bool(int64_t t, int64_t j)>;

inline Sees sees_all(bool causal) {
  return [causal](int64_t t, int64_t j) { return j <= t || !causal; };
}

/// out(sum_j w_j v_j), head by head, over the j that t sees.
struct PlainMixer {
  int64_t heads;
  torch::nn::Linear out;
  Sees sees;
  /// Maps x to rows that end with the values of all heads.
  std::function<Matrix(const Matrix& x)> rows;
  /// The score of a pair of those rows, for head h.
  std::function<double(const Matrix& rows, int64_t h, int64_t t, int64_t j)>
      score;
  std::function<void(Numbers&)> weigh;  ///< scores to weights

  Tensor operator()(const Tensor& x, const Tensor& mask = {}) const {
    const int64_t T = x.size(1), dim = x.size(2), d = dim / heads;
    std::vector<Tensor> result;
    for (int64_t b = 0; b < x.size(0); ++b) {
      const Matrix r = rows(rows_of(x[b]));
      const Numbers padded = mask.defined() ? numbers(mask[b]) : Numbers(T, 0);
      Matrix y(T, Numbers(dim, 0));
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < T; ++t) {
          std::vector<int64_t> keys;
          Numbers weights;
          for (int64_t j = 0; j < T; ++j) {
            if (!sees(t, j) || padded[j] != 0) continue;
            keys.push_back(j), weights.push_back(score(r, h, t, j));
          }
          weigh(weights);
          for (size_t n = 0; n < keys.size(); ++n) {
            const double* v = r[keys[n]].data() + r[t].size() - dim;
            for (int64_t i = h * d; i < (h + 1) * d; ++i)
              y[t][i] += weights[n] * v[i];
          }
        }
      }
      result.push_back(tensor_of(affine(out, y)));
    }
    return torch::stack(result);
  }
};

/// q . k of rows [q; k; v], where q and k have n channels per head.
inline auto dot(int64_t heads, int64_t n) {
  return [=](const Matrix& rows, int64_t h, int64_t t, int64_t j) {
    double sum = 0;
    for (int64_t i = h * n; i < (h + 1) * n; ++i)
      sum += rows[t][i] * rows[j][heads * n + i];
    return sum;
  };
}

/// softmax(q k^T / sqrt(d)) v of a mixer with qkv and out.
template <class M>
Tensor plain_attention(const M& m, const Tensor& x, const Sees& sees,
                       const Tensor& mask = {}) {
  const int64_t heads = m->options.heads(), d = m->options.dim() / heads;
  return PlainMixer{heads,
                    m->out,
                    sees,
                    [&](const Matrix& rows) { return affine(m->qkv, rows); },
                    dot(heads, d),
                    [d](Numbers& s) {
                      for (double& z : s) z /= std::sqrt(double(d));
                      softmax(s);
                    }}(x, mask);
}

/// The same with ATen and autograd, for gradients.
template <class M>
Tensor dense_attention(M m, const Tensor& x, const Sees& sees,
                       const Tensor& mask = {}) {
  const int64_t T = x.size(1), H = m->options.heads();
  Tensor hidden = torch::ones({T, T}, torch::kBool);
  bool* at = hidden.data_ptr<bool>();
  for (int64_t t = 0; t < T; ++t)
    for (int64_t j = 0; j < T; ++j) at[t * T + j] = !sees(t, j);
  if (mask.defined()) hidden = hidden | mask.view({-1, 1, 1, T});
  const auto parts = m->qkv->forward(x).chunk(3, 2);
  return m->out->forward(
      join_heads(attend(split_heads(parts[0], H), split_heads(parts[1], H),
                        split_heads(parts[2], H), hidden, mask.defined())));
}

}  // namespace aft::nn
