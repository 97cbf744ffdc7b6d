// The body that sequence models and classifiers share: pre-norm blocks with any
// mixer.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <vector>

#include "aft/nn/block.h"

namespace aft::models {

/// Creates the blocks and registers them as blocks_0, blocks_1, ... in `model`.
/// options_of: the options of block i; make_blocks sets the mixer's `layer`.
std::vector<nn::Block> make_blocks(
    torch::nn::Module& model, int64_t layers,
    const std::function<nn::BlockOptions(int64_t i)>& options_of);

/// Applies dropout and then the blocks to x [B, T, dim]. recompute: backward
/// recomputes the activations of the blocks. grid: see nn::BlockImpl::forward.
torch::Tensor run_blocks(std::vector<nn::Block>& blocks, const torch::Tensor& x,
                         double dropout, uint64_t seed, bool recompute,
                         const std::vector<int64_t>& grid = {});

}  // namespace aft::models
