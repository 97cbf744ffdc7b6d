// Code that the mixers share: base classes with linear layers and argument
// checks, and functions for heads, attention and cached keys and values.
#pragma once

#include <array>
#include <string>

#include "aft/nn/mixer.h"
#include "aft/nn/packed_linear.h"
#include "aft/ops/autocast.h"

namespace aft::nn {

/// Sizes, checks, and the linear layer after the operator.
class MixerBase : public Mixer {
 public:
  PackedLinear out{nullptr};  ///< [dim, dim]; null if disabled

  torch::Tensor last_weight() const override {
    return out ? out->weight : torch::Tensor();
  }
  /// Prints name(dim=, heads=, details, causal=).
  void pretty_print(std::ostream& stream) const override;

 protected:
  struct Shape {
    const char* name = "";  ///< of the module, in messages
    int64_t dim = 0, heads = 0;
    bool causal = false;
  };
  /// For reset(). Throws c10::Error unless dim and heads are positive and heads
  /// divides dim.
  void set_shape(const Shape& shape);
  /// For reset(): registers or replaces a linear layer with dim inputs.
  PackedLinear linear(const char* name, int64_t outputs, bool bias = true);

  /// Throws c10::Error unless x is [B, T, dim].
  void check_sequence(const torch::Tensor& x) const;
  /// Throws c10::Error unless x is [B, dim].
  void check_position(const torch::Tensor& x) const;
  /// Throws c10::Error unless mask is undefined or bool [B, T], for x [B, T,
  /// dim].
  void check_mask(const torch::Tensor& mask, const torch::Tensor& x) const;
  /// Throws c10::Error unless the mixer is causal and B >= 1.
  void check_stream(int64_t B) const;
  /// Returns an empty stream that will keep the keys and values of all
  /// positions, with k and v channels.
  ops::Stream start_cache(int64_t B, int64_t k, int64_t v) const;
  /// Further options for pretty_print, each as ", key=value".
  virtual std::string details() const { return ""; }
  int64_t head_dim() const { return shape_.dim / shape_.heads; }

  Shape shape_;
};

/// A mixer with heads whose queries, keys and values come from one linear
/// layer.
class QkvMixer : public MixerBase {
 public:
  PackedLinear qkv{nullptr};  ///< [3 dim, dim], whose rows are [q; k; v]

  void pack_for_inference() override { qkv.pack(), out.pack(); }
  /// Keeps the keys and values of all positions.
  ops::Stream start(int64_t B) const override {
    return start_cache(B, shape_.dim, shape_.dim);
  }

 protected:
  /// For reset(): set_shape, and new layers qkv and out.
  void make_layers(const Shape& shape);
  /// q, k and v [..., dim] of x [..., dim]; under autocast in float, because
  /// they are added to sums and caches.
  std::vector<torch::Tensor> project(const torch::Tensor& x) const {
    return ops::full_precision(qkv(x)).chunk(3, -1);
  }
};

/// ", key=value" for details().
std::string detail(const char* key, bool value);
std::string detail(const char* key, int64_t value);

/// [B, T, dim] to [B, heads, T, dim / heads], as a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);
/// [B, heads, T, d] to [B, T, heads d].
at::Tensor join_heads(const at::Tensor& x);

/// Throws c10::Error that starts with `name` unless x, computed in a step, has
/// the batch size, type and device of what the stream keeps.
void check_fits(const char* name, const ops::Stream& stream,
                const at::Tensor& x);

/// Appends k [B, dk] and v [B, dv], which fit, to ring_k and ring_v, which have
/// spare capacity, and increments the position.
void remember(ops::Stream& stream, const at::Tensor& k, const at::Tensor& v);

/// bool, true where a key is masked: [T, T] if causal, [B, 1, 1, T] if padded
/// (bool [B, T]), their union if both; undefined if neither.
at::Tensor masked_keys(int64_t T, bool causal, const at::Tensor& padded,
                       const at::Device& device);
/// softmax(q k^T / sqrt(d)) v: q [..., m, d], k [..., n, d], v [..., n, dv] to
/// [..., m, dv]. hidden: undefined, or bool that broadcasts to [..., m, n],
/// where true masks a key. empty_rows: all keys of a row may be masked; such
/// rows give 0.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& hidden, bool empty_rows);
/// attend for one position and several heads: q [B, dim], k and v [B, t, dim]
/// to [B, dim]; hidden broadcasts to [B, heads, 1, t].
at::Tensor attend_one(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, int64_t heads,
                      const at::Tensor& hidden = {});

}  // namespace aft::nn
