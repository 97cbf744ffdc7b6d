// What a model has inside, as numbers to look at: position biases, the keys of
// an image, and what attention looks at, by relative position.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "aft/models/classifier.h"
#include "aft/nn/mixer.h"

namespace aft::tasks {

/// The position biases of a mixer.
struct Biases {
  /// aft-full, aft-local: exp(w) [1, t, j]; 1 outside of the window, 0 there
  /// with window_only, NaN where a causal layer sees nothing. aft-conv:
  /// exp(w) - 1, [heads, kernel...], as the operator gets it. Undefined for
  /// mixers without position biases.
  torch::Tensor values;
  bool relative = false;  ///< of relative positions: aft-conv
  int64_t block = 1;      ///< a number is the mean of block x block positions
};

/// Of a mixer in evaluation mode. Where there are more than `most` positions,
/// means of blocks of them; memory O(most T).
Biases position_biases(const nn::Mixer& mixer, int64_t most);

/// The keys of images [B, 3, H, W], normalised, layer by layer: [B, channels,
/// rows, columns] each, the class token left out; channels: the heads of
/// aft-conv, the width of other AFT. The model must not be folded. Throws
/// c10::Error for a mixer that is no AFT.
std::vector<torch::Tensor> keys_of(models::ClassifierImpl& model,
                                   const torch::Tensor& images);

/// What attention looks at, by relative position, in the mean over queries and
/// images: the paper's Figure 1. The class token is left out, as a query and as
/// a key; what is left of the softmax is not scaled up again.
class RelativeAttention {
 public:
  enum class Divisor {
    kQueries,  ///< all queries: offsets that often leave the image get less
    kPairs,    ///< the queries that have a key at the offset
  };
  /// The model must not be folded. Throws c10::Error unless its mixer is
  /// attention.
  explicit RelativeAttention(models::ClassifierImpl& model);

  /// Takes in images [B, 3, H, W], normalised, all of one size.
  void add(const torch::Tensor& images);
  int64_t images() const { return images_; }
  /// [layers, heads, 2 rows - 1, 2 columns - 1], double; the centre is the
  /// query itself. Throws c10::Error before the first image.
  torch::Tensor mean(Divisor divisor) const;

 private:
  models::ClassifierImpl& model_;
  int64_t rows_ = 0, columns_ = 0, images_ = 0;
  torch::Tensor index_;  // [N N]: the offset of each pair of positions
  torch::Tensor sums_;   // [layers, heads, offsets]
};

}  // namespace aft::tasks
