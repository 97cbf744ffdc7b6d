// The AFT layers as torch modules: put one where multi-head self attention
// stood, [B, T, d] to [B, T, d].
//
//   aft::nn::AFTLocal mixer(aft::nn::AFTLocalOptions(512, /*max_len=*/1024,
//   /*window=*/32).causal(true)); torch::Tensor y = mixer(x);
//
// Parameters: Linear query, key, value, out (with biases), and the position
// biases u and v, or w; conv: w, gamma, beta. Modules print, clone and save as
// torch's own do. Streaming: `step` takes one position at a time and equals
// `forward`.
#pragma once

#include <c10/util/Optional.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <string>
#include <vector>

#include "aft/nn/folded.h"
#include "aft/nn/mixer.h"
#include "aft/ops/ops.h"
#include "aft/ops/stream.h"

namespace aft::nn {

// What every layer takes: causal, only positions up to the current one; out, a
// linear layer after the operator; gate, the query's activation (ops.h), "none"
// for no query, the paper's ablation.
#define AFT_COMMON_OPTIONS         \
  TORCH_ARG(bool, causal) = false; \
  TORCH_ARG(bool, out) = true;     \
  TORCH_ARG(std::string, gate) = "sigmoid"

/// No position bias.
struct AFTSimpleOptions {
  explicit AFTSimpleOptions(int64_t dim) : dim_(dim) {}
  TORCH_ARG(int64_t, dim);
  AFT_COMMON_OPTIONS;
};

/// A bias for every pair of the positions 0 .. max_len - 1; shorter sequences
/// use the first of them.
struct AFTFullOptions {
  AFTFullOptions(int64_t dim, int64_t max_len) : dim_(dim), max_len_(max_len) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, max_len);
  /// w = u v^T with u, v [max_len, rank] from N(0, 0.01^2).
  TORCH_ARG(int64_t, rank) = 128;
  /// w [max_len, max_len] itself, from N(0, 0.01^2), instead.
  TORCH_ARG(bool, dense) = false;
  AFT_COMMON_OPTIONS;
};

/// Biases where |t - j| < window.
struct AFTLocalOptions {
  AFTLocalOptions(int64_t dim, int64_t max_len, int64_t window)
      : dim_(dim), max_len_(max_len), window_(window) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, max_len);
  TORCH_ARG(int64_t, window);
  TORCH_ARG(int64_t, rank) = 128;
  TORCH_ARG(bool, dense) = false;
  /// Nothing outside of the window: the paper's ablation of global
  /// connectivity.
  TORCH_ARG(bool, window_only) = false;
  AFT_COMMON_OPTIONS;
};

/// Biases of the relative position on a grid, one kernel a head; any grid size.
struct AFTConvOptions {
  /// kernel: one size for each dimension of the grid (1, 2 or 3), odd unless
  /// causal (1d).
  AFTConvOptions(int64_t dim, int64_t heads, std::vector<int64_t> kernel)
      : dim_(dim), heads_(heads), kernel_(std::move(kernel)) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(std::vector<int64_t>, kernel);
  /// w = gamma (raw - mean) / std + beta for each head, gamma and beta from 0;
  /// otherwise w is the parameter itself.
  TORCH_ARG(bool, reparameterise) = true;
  TORCH_ARG(bool, window_only) = false;
  /// One position a head: in training w is multiplied by a Gumbel-softmax
  /// sample of this temperature (the paper's: 0.5), otherwise by the one-hot
  /// vector of its largest tap. 0: off; else in [0.01, 100].
  TORCH_ARG(double, gumbel) = 0;
  AFT_COMMON_OPTIONS;
};

#undef AFT_COMMON_OPTIONS

/// The projections, the gate and streaming of an AFT layer.
class AFTLayer : public Mixer {
 public:
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr},
      out{nullptr};  ///< query, out: null where off

  torch::Tensor last_weight() const override {
    return out ? out->weight : torch::Tensor();
  }
  void fold() override;

 protected:
  struct Layer {
    std::string name;
    int64_t dim, heads;  // heads: key channels
    bool causal, out;
    std::string gate;
  };
  void make_projections(const Layer& layer);
  /// Throws c10::Error unless x is [B, T, dim] with T <= max_len (< 0: any).
  void check_input(const torch::Tensor& x, int64_t max_len) const;
  /// q (undefined without a query), k and v of x.
  std::array<torch::Tensor, 3> project(const torch::Tensor& x);
  torch::Tensor finish(const torch::Tensor& y);
  /// What the operators take.
  ops::Common common(const torch::Tensor& key_padding_mask) const;
  ops::Stream start_stream(int64_t B, int64_t window) const;
  /// w as ops::step takes it.
  torch::Tensor stream_step(const torch::Tensor& x, ops::Stream& stream,
                            const torch::Tensor& w, bool window_only);
  void print(std::ostream& stream, const std::string& details) const;

  Layer layer_;

 private:
  Folded query_, key_, value_, out_;
};

class AFTSimpleImpl : public torch::nn::Cloneable<AFTSimpleImpl>,
                      public AFTLayer {
 public:
  explicit AFTSimpleImpl(const AFTSimpleOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  AFTSimpleOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})
};

class AFTFullImpl : public torch::nn::Cloneable<AFTFullImpl>, public AFTLayer {
 public:
  explicit AFTFullImpl(const AFTFullOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  AFTFullOptions options;
  torch::Tensor u, v, w;  ///< [max_len, rank] twice, or [max_len, max_len]

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})
};

class AFTLocalImpl : public torch::nn::Cloneable<AFTLocalImpl>,
                     public AFTLayer {
 public:
  explicit AFTLocalImpl(const AFTLocalOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  AFTLocalOptions options;
  torch::Tensor u, v, w;  ///< as in AFTFull; none where window is 0

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})
};

class AFTConvImpl : public torch::nn::Cloneable<AFTConvImpl>, public AFTLayer {
 public:
  explicit AFTConvImpl(const AFTConvOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// x [B, dim, H, W] (or [B, dim, D, H, W]) to the same; 1d: [B, T, dim] to
  /// the same.
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  /// x [B, T, dim] with the positions of a grid in row-major order.
  torch::Tensor forward_grid(
      const torch::Tensor& x, const std::vector<int64_t>& grid,
      const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  /// w, reparameterised, [heads, kernel...].
  torch::Tensor kernels() const;
  /// The biases that the operator gets: kernels(), with gumbel those of one
  /// position a head, or of a sample where it trains.
  torch::Tensor bias() const;
  /// The seed of Gumbel samples. Until the first call they come from torch's
  /// own generator.
  void redraw(uint64_t seed) override;
  void fold() override;

  AFTConvOptions options;
  torch::Tensor w, gamma, beta;  ///< [heads, kernel...], [heads], [heads]

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  /// One position a head: its bias [heads] and its place [heads, dimensions]
  /// relative to the current one.
  struct Single {
    torch::Tensor w, offsets;
  };
  Single single() const;
  torch::Tensor sample(const torch::Tensor& w) const;

  c10::optional<uint64_t> seed_;
  torch::Tensor bias_;  // folded
  Single single_;
};

TORCH_MODULE(AFTSimple);
TORCH_MODULE(AFTFull);
TORCH_MODULE(AFTLocal);
TORCH_MODULE(AFTConv);

/// How sparse the kernels of all AFTConv in a model are: of the distributions
/// softmax(w) over the taps of a head, means over heads and layers.
struct Sparsity {
  double entropy = 0;  ///< nats
  double most = 0;     ///< the greatest that it could be: log of the taps
  double top = 0;      ///< share of the mass in the largest tap
};
/// Nothing where the model has no AFTConv.
c10::optional<Sparsity> sparsity(const torch::nn::Module& model);
/// The entropies of softmax(w), summed over heads and layers: the paper's
/// reg(w), differentiable. Undefined where the model has no AFTConv.
torch::Tensor kernel_entropy(const torch::nn::Module& model);

}  // namespace aft::nn
