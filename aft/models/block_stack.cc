#include "aft/models/block_stack.h"

#include <string>

#include "aft/ops/pointwise.h"

namespace aft::models {

std::vector<nn::Block> make_blocks(
    torch::nn::Module& model, int64_t layers,
    const std::function<nn::BlockOptions(int64_t i)>& options_of) {
  std::vector<nn::Block> blocks;
  for (int64_t i = 0; i < layers; ++i) {
    nn::BlockOptions options = options_of(i);
    options.mixer().layer = i;
    blocks.push_back(model.register_module("blocks_" + std::to_string(i),
                                           nn::Block(options)));
  }
  return blocks;
}

torch::Tensor run_blocks(std::vector<nn::Block>& blocks, const torch::Tensor& x,
                         double dropout, uint64_t seed, bool recompute,
                         const std::vector<int64_t>& grid) {
  torch::Tensor y = ops::dropout_add({}, x, dropout, base::mix(seed, 0));
  recompute = recompute && y.requires_grad();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint64_t own = base::mix(seed, i + 1);
    y = recompute ? nn::recomputed(blocks[i], y, own, grid)
                  : blocks[i]->forward(y, own, grid);
  }
  return y;
}

}  // namespace aft::models
