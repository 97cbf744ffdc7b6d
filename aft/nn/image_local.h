// The causal local attention of the Image Transformer (Parmar et al. 2018). Per
// head,
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j,
// over j <= t near t. 1d: t's block of positions and the block before it. 2d:
// t's block of the image and a margin above it and to its left.
#pragma once

#include <string>
#include <vector>

#include "aft/nn/heads.h"
#include "aft/nn/tiled_attention.h"

namespace aft::nn {

struct ImageLocalOptions {
  ImageLocalOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads());
    if (s.pattern() == "1d") f("window", s.block());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(std::string, pattern) = "2d";  ///< or "1d"
  TORCH_ARG(int64_t, block) = 256;         ///< 1d: positions per block
  // 2d: the sequence is an image in row-major order.
  TORCH_ARG(int64_t, columns) = 96;  ///< positions per row; 96: 32 RGB pixels
  TORCH_ARG(int64_t, query_rows) = 16;  ///< of a block
  TORCH_ARG(int64_t, query_columns) = 16;
  TORCH_ARG(int64_t, memory_rows) = 16;     ///< of the margin above
  TORCH_ARG(int64_t, memory_columns) = 32;  ///< of the margins left and right
};

/// See QkvMixer for the parameters.
///
/// 2d: a block has rows [r, r + query_rows) and columns [c, c + query_columns).
/// Its queries see the following positions, clipped to the image and to j <= t:
/// the block; to its left, the same rows and columns [c - memory_columns, c);
/// above it, rows [r - memory_rows, r) and columns [c - memory_columns, c +
/// query_columns + memory_columns). This matches masked_local_attention_2d of
/// tensor2tensor with one exception. There, blocks are generated one after the
/// other, so a query sees the left margin down to the last row of the block.
/// Here positions are generated in the order of the sequence: the rows of the
/// margin below the query come later and are masked.
///
/// Time O(T keys dim), memory O(T dim); backward recomputes the weights. A
/// stream keeps two blocks (1d), or all keys and values, of which a step reads
/// those it sees (2d).
class ImageLocalImpl : public torch::nn::Cloneable<ImageLocalImpl>,
                       public QkvMixer {
 public:
  explicit ImageLocalImpl(const ImageLocalOptions& o) : options(o) { reset(); }
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  ImageLocalOptions options;

 private:
  bool flat() const { return options.pattern() == "1d"; }
  std::vector<Tile> tiles_1d(int64_t T, const at::Device& device) const;
  std::vector<Tile> tiles_2d(int64_t T, const at::Device& device) const;
  std::vector<Span> seen(int64_t row, int64_t column, int64_t end,
                         int64_t stop) const;
};
TORCH_MODULE(ImageLocal);

MixerKind image_local1d_kind();
MixerKind image_local2d_kind();

}  // namespace aft::nn
