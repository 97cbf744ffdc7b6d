// Extracts a model's internals for visualisation: position biases, the keys of
// an image, and attention by relative position.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "aft/models/classifier.h"
#include "aft/nn/mixer.h"

namespace aft::tasks {

/// The position biases of a mixer.
struct Biases {
  /// aft-full, aft-local: exp(w) [1, t, j]; outside the window 1, or 0 with
  /// window_only; NaN at positions masked by causality. aft-conv: exp(w) - 1,
  /// [heads, kernel...], as passed to the operator. Undefined for mixers
  /// without position biases.
  torch::Tensor values;
  bool relative = false;  ///< indexed by relative position: aft-conv
  int64_t block = 1;  ///< each value is the mean over block x block positions
};

/// The mixer must be in evaluation mode. With more than `most` positions,
/// values are averaged over blocks. Memory O(most T).
Biases position_biases(const nn::Mixer& mixer, int64_t most);

/// The keys of normalised images [B, 3, H, W], one tensor [B, channels, rows,
/// columns] per layer, without the class token. channels is the number of heads
/// for aft-conv, the width for other AFT variants. The model must not be
/// folded. Throws c10::Error if the mixer is not an AFT.
std::vector<torch::Tensor> keys_of(models::ClassifierImpl& model,
                                   const torch::Tensor& images);

/// Attention weights by relative position, averaged over queries and images, as
/// in the paper's Figure 1. The class token is excluded as a query and as a
/// key; the remaining weights are not renormalised.
class RelativeAttention {
 public:
  enum class Divisor {
    kQueries,  ///< all queries: offsets that often fall outside the image get
               ///< less weight
    kPairs,    ///< only the queries that have a key at the offset
  };
  /// The model must not be folded and must outlive this object. Throws
  /// c10::Error unless its mixer is attention.
  explicit RelativeAttention(models::ClassifierImpl& model);

  /// Accumulates normalised images [B, 3, H, W], all of one size.
  void add(const torch::Tensor& images);
  int64_t images() const { return images_; }
  /// [layers, heads, 2 rows - 1, 2 columns - 1], double; the query is at the
  /// centre. Throws c10::Error if no image was added.
  torch::Tensor mean(Divisor divisor) const;

 private:
  models::ClassifierImpl& model_;
  int64_t rows_ = 0, columns_ = 0, images_ = 0;
  torch::Tensor index_;  // [N N]: the offset of each pair of positions
  torch::Tensor sums_;   // [layers, heads, offsets]
};

}  // namespace aft::tasks
