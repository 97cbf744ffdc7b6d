// The local attention of the Image Transformer (Parmar et al. 2018), causal:
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j, head by head,
// over the j <= t near t. 1d: of t's block of positions, and of the block
// before it. 2d: of t's block of the picture and a flange above and left of it.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/nn/folded.h"
#include "aft/nn/mixer.h"
#include "aft/nn/sparse.h"

namespace aft::nn {

struct ImageLocalOptions {
  ImageLocalOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(std::string, pattern) = "2d";  ///< or "1d"
  TORCH_ARG(int64_t, block) = 256;         ///< 1d: positions of a block
  // 2d: the sequence is a picture row by row.
  TORCH_ARG(int64_t, columns) = 96;  ///< positions of a row: 32 pixels of RGB
  TORCH_ARG(int64_t, query_rows) = 16;  ///< of a block
  TORCH_ARG(int64_t, query_columns) = 16;
  TORCH_ARG(int64_t, memory_rows) = 16;     ///< of the flange above
  TORCH_ARG(int64_t, memory_columns) = 32;  ///< of those left and right
};

/// Parameters: Linear qkv [3 dim, dim], whose rows are [q; k; v], and out.
///
/// 2d: a block has the rows [r, r + query_rows) and the columns [c, c +
/// query_columns). Its queries see, as far as the picture goes and j <= t: the
/// block; left of it, the same rows and the columns [c - memory_columns, c);
/// above, the rows [r - memory_rows, r) and the columns [c - memory_columns, c
/// + query_columns + memory_columns). That is what masked_local_attention_2d of
/// tensor2tensor sees, less one thing: there blocks are generated one after the
/// other, and a query sees the left flange down to the block's last row; here
/// the order is that of the sequence, in which the flange's rows below the
/// query come later, and are hidden.
///
/// Time O(T keys dim), memory O(T dim): backward computes the weights again. A
/// stream keeps two blocks (1d); or all keys and values, of which a step reads
/// those it sees (2d).
class ImageLocalImpl : public torch::nn::Cloneable<ImageLocalImpl>,
                       public Mixer {
 public:
  explicit ImageLocalImpl(const ImageLocalOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  torch::Tensor last_weight() const override { return out->weight; }
  void fold() override;

  ImageLocalOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  bool flat() const { return options.pattern() == "1d"; }
  std::vector<Tile> tiles_1d(int64_t T, const at::Device& device) const;
  std::vector<Tile> tiles_2d(int64_t T, const at::Device& device) const;
  std::vector<Span> seen(int64_t row, int64_t column, int64_t end,
                         int64_t stop) const;

  Folded qkv_, out_;
};
TORCH_MODULE(ImageLocal);

}  // namespace aft::nn
