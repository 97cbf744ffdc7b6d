// A classifier of images as ViT and DeiT are built, with any mixer inside:
// patches, pre-norm blocks, final norm, head.
//
// With attention and most mixers: a class token before the patches and learned
// positions; the head reads the token. With aft-conv neither: the head reads
// the mean of all patches, and the network is fully convolutional.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/models/image_network.h"
#include "aft/nn/block.h"

namespace aft::models {

struct ClassifierConfig {
  std::string mixer = "attention";  ///< one of nn::mixer_kinds(false)
  int64_t layers = 12;
  int64_t width = 192;  ///< channels of x
  int64_t heads = 3;    ///< all but the other AFT
  int64_t window = 11;  ///< aft-conv: its kernel is window x window; others as
                        ///< nn::MixerOptions has it
  int64_t rank = 128;   ///< aft-full, aft-local: of the factorised biases
  bool dense = false;   ///< aft-full, aft-local: biases not factorised
  std::string gate =
      "sigmoid";  ///< AFT: the query's activation; none: no query
  bool window_only =
      false;             ///< aft-local, aft-conv: nothing outside the window
  bool naive = false;    ///< aft-conv: w itself is the parameter
  double gumbel = 0;     ///< aft-conv: one position a head; nn::AFTConvOptions
  int64_t rounds = 4;    ///< reformer: of hashing
  int64_t features = 0;  ///< performer; 0: floor(d ln d), d of a head
  int64_t mlp = 4;       ///< width of the MLP over `width`
  int64_t patch = 16;    ///< side of a patch in pixels
  int64_t rows = 14, columns = 14;  ///< patches of a training image
  int64_t classes = 1000;
  std::string pool = "token";  ///< what the head reads: token or mean
  bool positions = true;       ///< learned position embeddings
  double dropout = 0;
  double drop_path = 0;  ///< of the last layer; rises from 0 at the first

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("mixer", s.mixer), f("layers", s.layers), f("width", s.width);
    f("heads", s.heads), f("window", s.window), f("rank", s.rank);
    f("dense", s.dense), f("gate", s.gate), f("window_only", s.window_only);
    f("naive", s.naive), f("gumbel", s.gumbel), f("rounds", s.rounds);
    f("features", s.features);
    f("mlp", s.mlp), f("patch", s.patch);
    f("rows", s.rows), f("columns", s.columns), f("classes", s.classes);
    f("pool", s.pool), f("positions", s.positions), f("dropout", s.dropout);
    f("drop_path", s.drop_path);
  }
  /// pool and positions as the paper has them for this mixer.
  void follow_mixer();
  /// Positions of a training image, the class token among them.
  int64_t length() const { return rows * columns + (pool == "token" ? 1 : 0); }
};

class ClassifierImpl : public torch::nn::Cloneable<ClassifierImpl>,
                       public ImageNetwork {
 public:
  /// First weights as DeiT's: truncated normal of 0.02, biases 0. Throws
  /// c10::Error for a configuration that makes no sense.
  explicit ClassifierImpl(const ClassifierConfig& config);
  void reset() override;

  /// images [B, 3, H, W], normalised, H and W multiples of the patch, to logits
  /// [B, classes]. Another size than trained: positions are interpolated
  /// (bicubic); mixers with a bias for each pair of positions throw c10::Error.
  /// In training, seed chooses what is dropped. Without gradients and in
  /// evaluation mode, each thread takes images of its own.
  torch::Tensor forward(const torch::Tensor& images,
                        uint64_t seed = 0) override;
  /// What the first block gets of images: patches, token and positions,
  /// [B, positions, width].
  torch::Tensor embed(const torch::Tensor& images);
  void fold() override;  ///< Mixer::fold
  int64_t classes() const override { return config.classes; }
  /// Backward computes the activations of blocks again instead of keeping them.
  void recompute(bool on) { recompute_ = on; }

  ClassifierConfig config;
  torch::nn::Linear patch{nullptr};  ///< [width, 3 patch patch]
  torch::Tensor token;               ///< [width]; undefined without one
  torch::Tensor positions;           ///< [length, width]; undefined without
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};  ///< [classes, width]

 private:
  torch::Tensor run(const torch::Tensor& images, uint64_t seed);
  torch::Tensor positions_for(int64_t rows, int64_t columns) const;

  bool recompute_ = false;
};
TORCH_MODULE(Classifier);

/// Position embeddings [token + rows columns, width] (token: 1 where the first
/// is the class token's, else 0) for another grid: the token's stays, the
/// others are interpolated, bicubic.
torch::Tensor interpolate_positions(const torch::Tensor& positions,
                                    int64_t token, int64_t rows,
                                    int64_t columns, int64_t new_rows,
                                    int64_t new_columns);

}  // namespace aft::models
