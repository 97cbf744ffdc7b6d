// An image classifier in the style of ViT and DeiT, with any mixer: patches,
// pre-norm blocks, final norm, head.
//
// Most mixers, attention among them, use a class token before the patches and
// learned positions, and the head reads the token. Mixers that need a grid of
// positions have no class token: the head reads the mean of all patches. With
// aft-conv, which by default has no position embeddings either, the network is
// fully convolutional.
#pragma once

#include <string>
#include <vector>

#include "aft/models/block_stack.h"
#include "aft/models/image_network.h"

namespace aft::models {

struct ClassifierConfig {
  nn::MixerConfig mixer{"attention",
                        /*causal=*/false,
                        {{"window", 11}, {"rank", 128}, {"heads", 3}}};
  int64_t layers = 12;
  int64_t width = 192;  ///< channels of x
  int64_t mlp = 4;      ///< hidden width of the MLP as a multiple of `width`
  int64_t patch = 16;   ///< side of a patch, in pixels
  int64_t rows = 14, columns = 14;  ///< patches of a training image
  int64_t classes = 1000;
  std::string pool = "token";  ///< what the head reads: token or mean
  bool positions = true;       ///< learned position embeddings
  double dropout = 0;
  double drop_path = 0;  ///< of the last layer; increases linearly from 0

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    nn::MixerConfig::fields(s.mixer, f);
    f("layers", s.layers), f("width", s.width);
    f("mlp", s.mlp), f("patch", s.patch);
    f("rows", s.rows), f("columns", s.columns), f("classes", s.classes);
    f("pool", s.pool), f("positions", s.positions), f("dropout", s.dropout);
    f("drop_path", s.drop_path);
  }
  /// Sets pool and positions as in the paper for this mixer.
  void follow_mixer();
  /// Positions of a training image, including the class token.
  int64_t length() const { return rows * columns + (pool == "token" ? 1 : 0); }
};

class ClassifierImpl : public torch::nn::Cloneable<ClassifierImpl>,
                       public ImageNetwork {
 public:
  /// Initialises weights like DeiT: truncated normal with deviation 0.02,
  /// biases 0; the patch projection keeps torch's default. Throws c10::Error if
  /// the configuration is invalid.
  explicit ClassifierImpl(const ClassifierConfig& config);
  void reset() override;

  /// images [B, 3, H, W], normalised, with H and W multiples of the patch size,
  /// to logits [B, classes]. For sizes other than in training, positions are
  /// interpolated (bicubic); mixers with a bias per pair of positions throw
  /// c10::Error. In training, seed determines what is dropped. In evaluation
  /// mode without gradients, threads process separate images in parallel.
  torch::Tensor forward(const torch::Tensor& images,
                        uint64_t seed = 0) override;
  /// The input of the first block: patches, token and positions, [B, positions,
  /// width].
  torch::Tensor embed(const torch::Tensor& images);
  void pack_for_inference() override;  ///< see Mixer::pack_for_inference
  int64_t classes() const override { return config.classes; }
  /// If on, backward recomputes the activations of blocks instead of keeping
  /// them.
  void recompute(bool on) { recompute_ = on; }

  ClassifierConfig config;
  torch::nn::Linear patch{nullptr};  ///< [width, 3 patch patch]
  torch::Tensor token;      ///< [width]; undefined if pool is not "token"
  torch::Tensor positions;  ///< [length, width]; undefined if off
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};  ///< [classes, width]

 private:
  torch::Tensor run(const torch::Tensor& images, uint64_t seed);
  torch::Tensor positions_for(int64_t rows, int64_t columns) const;

  bool recompute_ = false;
};
TORCH_MODULE(Classifier);

/// Resizes position embeddings [token + rows columns, width] to another grid by
/// bicubic interpolation. token: 1 if the first embedding is that of the class
/// token, which is kept unchanged; otherwise 0.
torch::Tensor interpolate_positions(const torch::Tensor& positions,
                                    int64_t token, int64_t rows,
                                    int64_t columns, int64_t new_rows,
                                    int64_t new_columns);

}  // namespace aft::models
