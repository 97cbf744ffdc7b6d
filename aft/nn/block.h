// A pre-norm block: x = x + mixer(norm1(x)), x = x + mlp(norm2(x)), with
// dropout on what joins x (of single numbers, and of whole samples: "drop
// path"), and the MLP fc2(gelu(fc1(x))).
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

#include "aft/nn/folded.h"
#include "aft/nn/mixer.h"

namespace aft::nn {

struct BlockOptions {
  explicit BlockOptions(MixerOptions mixer) : mixer_(std::move(mixer)) {}
  TORCH_ARG(MixerOptions, mixer);
  TORCH_ARG(int64_t, mlp) = 4;  ///< width of the MLP over dim
  TORCH_ARG(double, dropout) = 0;
  /// Probability that a sample passes by the mixer, or the MLP, in training.
  TORCH_ARG(double, drop_path) = 0;
  TORCH_ARG(double, eps) = 1e-5;  ///< of the norms
};

class BlockImpl : public torch::nn::Cloneable<BlockImpl> {
 public:
  explicit BlockImpl(const BlockOptions& options);
  void reset() override;
  /// x [B, T, dim] to the same. In training, seed chooses what is dropped.
  /// grid: where the positions lie, for mixers that care (Mixer::forward_grid).
  torch::Tensor forward(const torch::Tensor& x, uint64_t seed = 0,
                        const std::vector<int64_t>& grid = {});
  /// For inference only from then on: Mixer::fold, and the MLP alike.
  void fold();
  /// One position x [B, dim] to the same.
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream);

  BlockOptions options;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  std::shared_ptr<Mixer> mixer;
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};

 private:
  torch::Tensor mlp(const torch::Tensor& x);
  torch::Tensor infer(const torch::Tensor& x, const std::vector<int64_t>& grid);
  /// x + what the branch says, in training without what is dropped.
  torch::Tensor join(const torch::Tensor& x, const torch::Tensor& branch,
                     uint64_t seed);

  Folded fc1_, fc2_;
};
TORCH_MODULE(Block);

/// forward(x, seed, grid), whose inner activations are not kept: backward
/// computes them again. Gradients of parameters go to their .grad at once.
torch::Tensor recomputed(const Block& block, const torch::Tensor& x,
                         uint64_t seed, const std::vector<int64_t>& grid = {});

/// A number of 64 bits that depends on all of its arguments.
uint64_t mix(uint64_t a, uint64_t b);

}  // namespace aft::nn
