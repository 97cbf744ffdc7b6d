// The interface of the mixers: modules that take the place of attention, [B, T,
// dim] to [B, T, dim], and the factory that creates them by name.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "aft/ops/stream.h"

namespace aft::nn {

class Mixer : public virtual torch::nn::Module {
 public:
  /// x [B, T, dim] to [B, T, dim]. mask: bool [B, T], true for padded
  /// positions.
  virtual torch::Tensor forward(const torch::Tensor& x,
                                const torch::Tensor& key_padding_mask = {}) = 0;
  /// forward for the positions of a grid in row-major order; T is the product
  /// of the grid sizes. Mixers without a notion of a grid treat them as a
  /// sequence.
  virtual torch::Tensor forward_grid(
      const torch::Tensor& x, const std::vector<int64_t>& /*grid*/,
      const torch::Tensor& key_padding_mask = {}) {
    return forward(x, key_padding_mask);
  }
  /// Prepares for inference: packs the weights, computes constants once, and
  /// frees the original weights. Gradients are an error afterwards.
  virtual void pack_for_inference() {}
  /// Redraws all random state. Called with a new seed at each training step,
  /// and with the same seed when a block is recomputed.
  virtual void redraw(uint64_t /*seed*/) {}
  /// Returns an empty stream for B sequences. Throws c10::Error if the mixer is
  /// not causal.
  virtual ops::Stream start(int64_t B) const = 0;
  /// Processes one position: x [B, dim] to [B, dim]. Repeated steps give the
  /// result of forward at a lower cost per position. Not recorded by autograd.
  virtual torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) = 0;
  /// The weight of the linear layer whose output is added to the residual;
  /// deeper networks initialise it with smaller values. Undefined if there is
  /// none.
  virtual torch::Tensor last_weight() const = 0;
};

/// Options of all mixers. Each mixer reads those that it needs.
struct MixerOptions {
  std::string kind;     ///< one of mixer_kinds(causal)
  int64_t dim = 0;      ///< channels
  int64_t max_len = 0;  ///< maximum length, for biases per position
  /// aft-local: |t - j| < window; aft-conv: number of taps; sparse: the stride;
  /// reformer: positions per chunk; image-local1d: positions per block.
  int64_t window = 32;
  int64_t grid = 1;    ///< aft-conv: dimensions, with `window` taps each
  int64_t rank = 128;  ///< aft-full, aft-local: rank of w = u v^T
  bool dense = false;  ///< aft-full, aft-local: w itself is the parameter
  int64_t heads = 8;   ///< all kinds except aft-simple, -full and -local
  bool causal = true;
  bool out = true;  ///< AFT, lambda: output projection; others always have one
  // The paper's ablations.
  std::string gate =
      "sigmoid";             ///< AFT: activation of the query; none: no query
  bool window_only = false;  ///< aft-local, aft-conv: -inf outside, not 0
  bool naive = false;        ///< aft-conv: w itself is the parameter
  double gumbel = 0;         ///< aft-conv: one sampled position per head
  // Options of the baselines.
  int64_t layer = 0;     ///< sparse: local in even layers, strided in odd ones
  int64_t rounds = 4;    ///< reformer: rounds of hashing
  int64_t features = 0;  ///< performer; 0: floor(d ln d), d = dim / heads
  int64_t rows = 0;      ///< lambda: rows of the largest grid
  /// lambda: columns of the largest grid; image-local2d: positions per row.
  int64_t columns = 0;
};

/// Returns a new mixer with torch's default initial weights. Throws c10::Error
/// if the kind is unknown or the options do not fit it.
std::shared_ptr<Mixer> make_mixer(const MixerOptions& options);
/// The kinds that support causal mixing, or those that support non-causal
/// mixing.
const std::vector<std::string>& mixer_kinds(bool causal);
/// Whether forward and step are limited to max_len positions.
bool has_max_len(const std::string& kind);
/// Whether a stream keeps all past positions, so that its state and the cost of
/// a step grow with the position.
bool keeps_all(const std::string& kind);

}  // namespace aft::nn
