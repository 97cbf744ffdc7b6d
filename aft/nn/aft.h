// The AFT layers as torch modules, drop-in replacements for multi-head self
// attention: [B, T, d] to [B, T, d].
//
//   aft::nn::AFTLocal mixer(
//       aft::nn::AFTLocalOptions(512, /*max_len=*/1024, /*window=*/32)
//           .causal(true));
//   torch::Tensor y = mixer(x);
//
// Parameters: Linear query, key, value and out (with biases), and the position
// biases: u and v, or w; for conv w, gamma and beta. The modules print, clone
// and save like torch's own. For streaming, `step` takes one position at a time
// and gives the same result as `forward`.
#pragma once

#include <c10/util/Optional.h>

#include <array>
#include <string>
#include <vector>

#include "aft/nn/heads.h"
#include "aft/nn/mixer.h"
#include "aft/ops/ops.h"
#include "aft/ops/stream.h"

namespace aft::nn {

// Options of every layer; `fields` lists the configuration keys. causal: use
// only positions up to the current one. out: apply a linear layer after the
// operator. gate: the activation of the query (ops.h); "none" removes the query
// (the paper's ablation).
#define AFT_COMMON_OPTIONS         \
  TORCH_ARG(bool, causal) = false; \
  TORCH_ARG(bool, out) = true;     \
  TORCH_ARG(std::string, gate) = "sigmoid"

/// No position bias.
struct AFTSimpleOptions {
  explicit AFTSimpleOptions(int64_t dim) : dim_(dim) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("out", s.out()), f("gate", s.gate());
  }
  TORCH_ARG(int64_t, dim);
  AFT_COMMON_OPTIONS;
};

/// A bias for every pair of positions below max_len. Shorter sequences use the
/// biases of the first T positions.
struct AFTFullOptions {
  AFTFullOptions(int64_t dim, int64_t max_len) : dim_(dim), max_len_(max_len) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("rank", s.rank()), f("dense", s.dense());
    f("out", s.out()), f("gate", s.gate());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, max_len);
  /// w = u v^T, with u, v [max_len, rank] initialised from N(0, 0.01^2).
  TORCH_ARG(int64_t, rank) = 128;
  /// The parameter is w [max_len, max_len] itself, initialised from N(0,
  /// 0.01^2).
  TORCH_ARG(bool, dense) = false;
  AFT_COMMON_OPTIONS;
};

/// Biases for pairs with |t - j| < window.
struct AFTLocalOptions {
  AFTLocalOptions(int64_t dim, int64_t max_len, int64_t window)
      : dim_(dim), max_len_(max_len), window_(window) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("window", s.window()), f("rank", s.rank()), f("dense", s.dense());
    f("window_only", s.window_only());
    f("out", s.out()), f("gate", s.gate());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, max_len);
  TORCH_ARG(int64_t, window);
  TORCH_ARG(int64_t, rank) = 128;
  TORCH_ARG(bool, dense) = false;
  /// Ignore keys outside the window: the paper's ablation of global
  /// connectivity.
  TORCH_ARG(bool, window_only) = false;
  AFT_COMMON_OPTIONS;
};

/// Biases that depend on the relative position on a grid of any size, one
/// kernel per head.
struct AFTConvOptions {
  /// kernel: one size per dimension of the grid (1, 2 or 3); odd unless causal
  /// (1d).
  AFTConvOptions(int64_t dim, int64_t heads, std::vector<int64_t> kernel)
      : dim_(dim), heads_(heads), kernel_(std::move(kernel)) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    int64_t window = s.kernel()[0];
    bool naive = !s.reparameterise();
    f("heads", s.heads()), f("window", window);
    f("window_only", s.window_only()), f("naive", naive);
    f("gumbel", s.gumbel()), f("out", s.out()), f("gate", s.gate());
    if constexpr (!std::is_const_v<Self>) {
      s.kernel().assign(s.kernel().size(), window);
      s.reparameterise(!naive);
    }
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(std::vector<int64_t>, kernel);
  /// w = gamma (raw - mean) / std + beta per head, with gamma and beta
  /// initialised to 0. If false, w itself is the parameter.
  TORCH_ARG(bool, reparameterise) = true;
  TORCH_ARG(bool, window_only) = false;
  /// Restrict each head to one position. In training, w is multiplied by a
  /// Gumbel-softmax sample with this temperature (0.5 in the paper); otherwise
  /// by the one-hot vector of its largest tap. 0 turns it off; otherwise in
  /// [0.01, 100].
  TORCH_ARG(double, gumbel) = 0;
  AFT_COMMON_OPTIONS;
};

#undef AFT_COMMON_OPTIONS

/// Projections, gate and streaming, shared by the AFT layers.
class AFTLayer : public MixerBase {
 public:
  /// query is null if disabled. key has one channel per head; the variants
  /// without heads have as many heads as channels.
  PackedLinear query{nullptr}, key{nullptr}, value{nullptr};

  void pack_for_inference() override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  /// Creates the linear layers.
  void make_projections(const Shape& shape, bool out, const std::string& gate);
  /// Throws c10::Error unless x is [B, T, dim] with T <= max_len.
  void check_input(const torch::Tensor& x, int64_t max_len) const;
  /// Returns q (undefined if there is no query), k and v.
  std::array<torch::Tensor, 3> project(const torch::Tensor& x);
  torch::Tensor finish(const torch::Tensor& y) { return out ? out(y) : y; }
  /// Arguments for the operators.
  ops::Common common(const torch::Tensor& key_padding_mask) const;
  ops::Stream start_stream(int64_t B, int64_t window) const;
  /// w is the argument of ops::step.
  torch::Tensor stream_step(const torch::Tensor& x, ops::Stream& stream,
                            const torch::Tensor& w, bool window_only);

 private:
  std::string gate_;
};

class AFTSimpleImpl : public torch::nn::Cloneable<AFTSimpleImpl>,
                      public AFTLayer {
 public:
  explicit AFTSimpleImpl(const AFTSimpleOptions& o) : options(o) { reset(); }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  AFTSimpleOptions options;
};

class AFTFullImpl : public torch::nn::Cloneable<AFTFullImpl>, public AFTLayer {
 public:
  explicit AFTFullImpl(const AFTFullOptions& o) : options(o) { reset(); }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  AFTFullOptions options;
  torch::Tensor u, v, w;  ///< u, v [max_len, rank], or w [max_len, max_len]

 private:
  std::string details() const override;
};

class AFTLocalImpl : public torch::nn::Cloneable<AFTLocalImpl>,
                     public AFTLayer {
 public:
  explicit AFTLocalImpl(const AFTLocalOptions& o) : options(o) { reset(); }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  AFTLocalOptions options;
  torch::Tensor u, v, w;  ///< as in AFTFull; undefined if window is 0

 private:
  std::string details() const override;
};

class AFTConvImpl : public torch::nn::Cloneable<AFTConvImpl>, public AFTLayer {
 public:
  explicit AFTConvImpl(const AFTConvOptions& o) : options(o) { reset(); }
  void reset() override;
  /// x [B, dim, H, W] or [B, dim, D, H, W] to the same shape; 1d: [B, T, dim]
  /// to the same shape.
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  /// x [B, T, dim], the positions of the grid in row-major order.
  torch::Tensor forward_grid(
      const torch::Tensor& x, const std::vector<int64_t>& grid,
      const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  /// The reparameterised w [heads, kernel...].
  torch::Tensor kernels() const;
  /// The biases passed to the operator: kernels(), or with gumbel, kernels()
  /// multiplied as described at AFTConvOptions::gumbel.
  torch::Tensor bias() const;
  /// Sets the seed of the Gumbel samples. Until the first call they use torch's
  /// generator.
  void redraw(uint64_t seed) override;
  void pack_for_inference() override;

  AFTConvOptions options;
  torch::Tensor w, gamma, beta;  ///< [heads, kernel...], [heads], [heads]

 private:
  std::string details() const override;
  /// One position per head: its bias [heads] and its offset from the current
  /// position [heads, dimensions].
  struct OneTap {
    torch::Tensor w, offsets;
  };
  OneTap one_tap() const;
  torch::Tensor sample(const torch::Tensor& w) const;

  c10::optional<uint64_t> seed_;
  /// Whether to use the constants of pack_for_inference().
  bool is_packed() const;

  torch::Tensor bias_;  // set by pack_for_inference()
  OneTap one_tap_;
  Snapshot from_;
};

TORCH_MODULE(AFTSimple);
TORCH_MODULE(AFTFull);
TORCH_MODULE(AFTLocal);
TORCH_MODULE(AFTConv);

/// Adds the traits that the AFT layers share.
MixerKind aft_traits(MixerKind kind);
MixerKind aft_simple_kind();
MixerKind aft_full_kind();
MixerKind aft_local_kind();
MixerKind aft_conv_kind();

/// How sparse the kernels of all AFTConv layers of a model are: statistics of
/// softmax(w) over the taps of each head, averaged over heads and layers.
struct Sparsity {
  double entropy = 0;  ///< in nats
  double most = 0;     ///< the maximum entropy: log of the number of taps
  double top = 0;      ///< probability of the largest tap
};
/// Returns nullopt if the model has no AFTConv.
c10::optional<Sparsity> sparsity(const torch::nn::Module& model);
/// The sum over heads and layers of the entropy of softmax(w): the paper's
/// reg(w). Differentiable. Undefined if the model has no AFTConv.
torch::Tensor kernel_entropy(const torch::nn::Module& model);

}  // namespace aft::nn
