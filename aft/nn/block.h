// A pre-norm block: x = x + mixer(norm1(x)), x = x + mlp(norm2(x)), where mlp
// is fc2(gelu(fc1(x))). Each branch has dropout, of elements and of whole
// samples ("drop path").
#pragma once

#include <torch/nn/modules/normalization.h>

#include <memory>
#include <vector>

#include "aft/base/random.h"
#include "aft/nn/mixer.h"
#include "aft/nn/packed_linear.h"

namespace aft::nn {

struct BlockOptions {
  explicit BlockOptions(MixerOptions mixer) : mixer_(std::move(mixer)) {}
  TORCH_ARG(MixerOptions, mixer);
  TORCH_ARG(int64_t, mlp) = 4;  ///< hidden width of the MLP over dim
  TORCH_ARG(double, dropout) = 0;
  /// Probability that a sample skips the mixer, or the MLP, in training.
  TORCH_ARG(double, drop_path) = 0;
  TORCH_ARG(double, eps) = 1e-5;  ///< of the layer norms
};

class BlockImpl : public torch::nn::Cloneable<BlockImpl> {
 public:
  explicit BlockImpl(const BlockOptions& options);
  void reset() override;
  /// x [B, T, dim] to the same shape. In training, seed determines what is
  /// dropped. grid: the layout of the positions, for mixers that use it
  /// (Mixer::forward_grid).
  torch::Tensor forward(const torch::Tensor& x, uint64_t seed = 0,
                        const std::vector<int64_t>& grid = {});
  /// Packs the weights of the mixer and the MLP (Mixer::pack_for_inference).
  void pack_for_inference();
  /// One position: x [B, dim] to the same shape.
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream);

  BlockOptions options;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  std::shared_ptr<Mixer> mixer;
  PackedLinear fc1{nullptr}, fc2{nullptr};

 private:
  torch::Tensor mlp(const torch::Tensor& x);
  torch::Tensor infer(const torch::Tensor& x, const std::vector<int64_t>& grid);
  /// x + branch, with dropout and drop path in training.
  torch::Tensor join(const torch::Tensor& x, const torch::Tensor& branch,
                     uint64_t seed);
};
TORCH_MODULE(Block);

/// Computes forward(x, seed, grid) without keeping the inner activations;
/// backward recomputes them. Parameter gradients are added directly to .grad.
torch::Tensor recomputed(const Block& block, const torch::Tensor& x,
                         uint64_t seed, const std::vector<int64_t>& grid = {});

}  // namespace aft::nn
