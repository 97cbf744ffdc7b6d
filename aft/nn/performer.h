// Performer attention (FAVOR+): softmax attention estimated by m positive
// orthogonal random features, head by head, over j <= t where causal:
//   y_t = sum_j (phi(q_t) . phi(k_j)) v_j / sum_j phi(q_t) . phi(k_j),
//   phi(x)_f = e_f + eps max_g e_g, e_f = exp(omega_f . x^ - |x^|^2 / 2),
// x^ = x d^(-1/4), d = dim / heads, eps = 1e-6 (m^(-1/2) cancels). Linear in T.
//
// The stabiliser. e_f has the mean 1 over omega, but e^50 and e^-400 occur.
// Published code divides keys by their maximum over features and time, which
// tells each row of the future, and adds eps to what is left. Here:
//   - eps is relative to the largest feature of the same position, so phi is a
//     function of that position alone, and the division below changes nothing
//     but rounding;
//   - each position is divided by its largest feature e^c: features lie in
//     [eps, 1 + eps], whatever x is;
//   - e^c stays with the sums as a weight, relative to the largest c that a row
//     sees (prefix.h): a running maximum, exact to the bit. Denominators are
//     eps or more: a row always has one key of weight 1.
// The other way, one constant for all: as e_f <= exp(|omega_f|^2 / 2), division
// by the largest of these never overflows. But that is e^50 for d = 64 and
// e^150 for d = 256, which floats do not hold beside features around 1; and
// where keys are long, nothing but eps is left. Ours costs T C exponentials
// more, beside 2 T m for the features.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "aft/nn/folded.h"
#include "aft/nn/mixer.h"

namespace aft::nn {

struct PerformerOptions {
  PerformerOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
  /// m; 0: floor(d ln d) and at least 1.
  TORCH_ARG(int64_t, features) = 0;
  /// Training steps between new features, on average; 0: never new ones.
  TORCH_ARG(int64_t, redraw_every) = 1000;
};

/// Parameters: Linear qkv [3 dim, dim], whose rows are [q; k; v], and out.
/// Buffer: omega [m, d], shared by all heads.
class PerformerImpl : public torch::nn::Cloneable<PerformerImpl>, public Mixer {
 public:
  explicit PerformerImpl(const PerformerOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  torch::Tensor last_weight() const override { return out->weight; }
  void fold() override;
  /// Draws omega anew where redraw_every divides seed; it then depends on seed
  /// alone.
  void redraw(uint64_t seed) override;
  /// m.
  int64_t features() const { return omega.size(0); }

  PerformerOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};
  torch::Tensor omega;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  Folded qkv_, out_;
};
TORCH_MODULE(Performer);

/// m rows of d numbers, each a Gaussian vector of N(0, 1) by itself; rows [i d,
/// (i + 1) d) are orthogonal. double. Without a generator: torch's own.
torch::Tensor orthogonal_features(int64_t m, int64_t d,
                                  c10::optional<at::Generator> generator = {});

}  // namespace aft::nn
