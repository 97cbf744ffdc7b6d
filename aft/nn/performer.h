// Performer attention (FAVOR+): estimates softmax attention with m positive
// orthogonal random features. Per head, over j <= t if causal,
//   y_t = sum_j (phi(q_t) . phi(k_j)) v_j / sum_j phi(q_t) . phi(k_j),
//   phi(x)_f = e_f + eps max_g e_g, e_f = exp(omega_f . x^ - |x^|^2 / 2),
// x^ = x d^(-1/4), d = dim / heads, eps = 1e-6 (m^(-1/2) cancels). Linear in T.
//
// Numerical stability. e_f has mean 1 over omega, but values such as e^50 and
// e^-400 occur. The published code divides keys by their maximum over features
// and time, which leaks the future into every row, and then adds eps. Here:
//   - eps is relative to the largest feature of the same position. So phi is
//     a function of that position alone, and the division below affects only
//     rounding.
//   - Each position is divided by its largest feature e^c. Features lie in
//     [eps, 1 + eps] for every x.
//   - The sums keep e^c as a weight, relative to the largest c that a row sees
//     (prefix_sum_attention.h). This is a running maximum, so causality is
//     bit-exact. Denominators are at least eps, because a row always has one
//     key of weight 1.
//
// The alternative is a global constant: since e_f <= exp(|omega_f|^2 / 2),
// dividing by the largest of these bounds never overflows. But this bound is
// e^50 for d = 64 and e^150 for d = 256, which floats cannot represent together
// with features around 1; and for keys of large norm, only eps would remain.
// The method used here costs T C additional exponentials (C: chunk length),
// compared with 2 T m for the features.
#pragma once

#include "aft/nn/heads.h"

namespace aft::nn {

struct PerformerOptions {
  PerformerOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads()), f("features", s.features());
    f("redraw_every", s.redraw_every());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
  /// m; 0: floor(d ln d), at least 1.
  TORCH_ARG(int64_t, features) = 0;
  /// Average number of training steps between redraws of the features; 0:
  /// never.
  TORCH_ARG(int64_t, redraw_every) = 1000;
};

/// See QkvMixer for the parameters.
/// Buffer: omega [m, d], shared by all heads.
class PerformerImpl : public torch::nn::Cloneable<PerformerImpl>,
                      public QkvMixer {
 public:
  explicit PerformerImpl(const PerformerOptions& o) : options(o) { reset(); }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  /// Redraws omega, from the seed alone, if redraw_every divides the seed.
  void redraw(uint64_t seed) override;
  /// The number of features m.
  int64_t features() const { return omega.size(0); }

  PerformerOptions options;
  torch::Tensor omega;

 private:
  std::string details() const override;
};
TORCH_MODULE(Performer);

MixerKind performer_kind();

/// Returns m rows of d elements, in double. Each row is distributed as N(0,
/// 1)^d; rows [i d, (i + 1) d) are orthogonal. Uses torch's generator by
/// default.
torch::Tensor orthogonal_features(int64_t m, int64_t d,
                                  c10::optional<at::Generator> generator = {});

}  // namespace aft::nn
