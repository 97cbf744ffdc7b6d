#include "aft/models/classifier.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/init.h>

#include <algorithm>

#include "aft/models/checks.h"
#include "aft/ops/autocast.h"
#include "aft/ops/common.h"
#include "aft/ops/pointwise.h"

namespace aft::models {
namespace {

/// N(0, 0.02^2), truncated at +-2 like timm's trunc_normal_; with this
/// deviation nothing is truncated.
void initialise(torch::Tensor x) { x.normal_(0, 0.02).clamp_(-2, 2); }

}  // namespace

void ClassifierConfig::follow_mixer() {
  pool = mixer.traits().needs_grid ? "mean" : "token";
  positions = mixer.traits().position_embeddings;
}

ClassifierImpl::ClassifierImpl(const ClassifierConfig& c) : config(c) {
  reset();
}

void ClassifierImpl::reset() {
  const auto& c = config;
  check_positive({{"layers", c.layers},
                  {"width", c.width},
                  {"classes", c.classes},
                  {"mlp", c.mlp},
                  {"patch", c.patch},
                  {"rows", c.rows},
                  {"columns", c.columns}});
  check_probabilities({{"drop_path", c.drop_path}, {"dropout", c.dropout}});
  c.mixer.check_name();
  const nn::MixerKind& kind = c.mixer.traits();
  if (kind.has("heads")) {
    const int64_t heads = c.mixer.get<int64_t>("heads");
    TORCH_CHECK(heads >= 1 && c.width % heads == 0,
                "model.heads must divide model.width = ", c.width, ", got ",
                heads);
  }
  if (kind.odd_window) {
    const int64_t window = c.mixer.get<int64_t>("window");
    TORCH_CHECK(window >= 1 && window % 2 == 1, "model.window must be odd for ",
                kind.name, ", to have a centre, got ", window);
  }
  TORCH_CHECK(c.pool == "token" || c.pool == "mean",
              "model.pool must be token or mean, got '", c.pool, "'");
  TORCH_CHECK(!kind.needs_grid || c.pool == "mean",
              "model.pool must be mean for ", kind.name,
              ", whose positions must form a grid, got token");

  nn::MixerOptions mixer = c.mixer.options();
  mixer.dim = c.width, mixer.max_len = c.length();
  mixer.grid = 2, mixer.rows = c.rows, mixer.columns = c.columns;
  patch = register_module("patch",
                          torch::nn::Linear(3 * c.patch * c.patch, c.width));
  token = positions = torch::Tensor();
  if (c.pool == "token")
    token = register_parameter("token", at::empty({c.width}));
  if (c.positions)
    positions =
        register_parameter("positions", at::empty({c.length(), c.width}));
  blocks = make_blocks(*this, c.layers, [&](int64_t i) {
    const double path = c.layers == 1 ? c.drop_path
                                      : c.drop_path * static_cast<double>(i) /
                                            static_cast<double>(c.layers - 1);
    return nn::BlockOptions(mixer)
        .mlp(c.mlp)
        .dropout(c.dropout)
        .drop_path(path)
        .eps(1e-6);
  });
  norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.width}).eps(1e-6)));
  head = register_module("head", torch::nn::Linear(c.width, c.classes));

  at::NoGradGuard no_grad;
  for (const auto& m : modules(/*include_self=*/false)) {
    auto* linear = m->as<torch::nn::Linear>();
    // The patch projection keeps torch's default initial weights, like the
    // convolution of ViT.
    if (!linear || linear == patch.get()) continue;
    initialise(linear->weight);
    if (linear->bias.defined()) linear->bias.zero_();
  }
  if (token.defined()) initialise(token);
  if (positions.defined()) initialise(positions);
}

void ClassifierImpl::pack_for_inference() {
  for (nn::Block& b : blocks) b->pack_for_inference();
}

torch::Tensor interpolate_positions(const torch::Tensor& positions,
                                    int64_t token, int64_t rows,
                                    int64_t columns, int64_t new_rows,
                                    int64_t new_columns) {
  const int64_t width = positions.size(1);
  const torch::Tensor grid = positions.narrow(0, token, rows * columns)
                                 .t()
                                 .reshape({1, width, rows, columns});
  const torch::Tensor wide =
      at::upsample_bicubic2d(grid, {new_rows, new_columns},
                             /*align_corners=*/false)
          .reshape({width, new_rows * new_columns})
          .t();
  return at::cat({positions.narrow(0, 0, token), wide});
}

torch::Tensor ClassifierImpl::positions_for(int64_t rows,
                                            int64_t columns) const {
  if (rows == config.rows && columns == config.columns) return positions;
  return interpolate_positions(positions, token.defined() ? 1 : 0, config.rows,
                               config.columns, rows, columns);
}

torch::Tensor ClassifierImpl::forward(const torch::Tensor& images,
                                      uint64_t seed) {
  const int64_t p = config.patch;
  TORCH_CHECK(images.dim() == 4 && images.size(1) == 3 && images.size(2) >= p &&
                  images.size(3) >= p && images.size(2) % p == 0 &&
                  images.size(3) % p == 0,
              "Classifier: images must be [B, 3, H, W] with H and W multiples "
              "of the patch, ",
              p, ", got ", ops::shape_of(images));
  const int64_t B = images.size(0), rows = images.size(2) / p,
                columns = images.size(3) / p;
  TORCH_CHECK((rows == config.rows && columns == config.columns) ||
                  !config.mixer.traits().has_max_len,
              "Classifier: ", config.mixer.name,
              " has a bias for each pair of positions, so images must be ",
              config.rows * p, "x", config.columns * p, ", got ", rows * p, "x",
              columns * p);
  // Autocast is a setting of this thread.
  if (is_training() || at::GradMode::is_enabled() ||
      !images.device().is_cpu() || B < 2 || ops::autocast_enabled(images))
    return run(images, seed);
  // Each thread takes one image or a few. Threads do not synchronise between
  // layers, and each layer finds its input in the cache.
  torch::Tensor out = at::empty({B, config.classes}, images.options());
  constexpr int64_t kTogether = 4;
  const int64_t parts = (B + kTogether - 1) / kTogether;
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    at::NoGradGuard no_grad;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * kTogether, n = std::min(kTogether, B - first);
      out.narrow(0, first, n).copy_(run(images.narrow(0, first, n), seed));
    }
  });
  return out;
}

torch::Tensor ClassifierImpl::embed(const torch::Tensor& images) {
  const int64_t B = images.size(0), p = config.patch, rows = images.size(2) / p,
                columns = images.size(3) / p;
  torch::Tensor x = patch(images.reshape({B, 3, rows, p, columns, p})
                              .permute({0, 2, 4, 1, 3, 5})
                              .reshape({B, rows * columns, 3 * p * p}));
  if (token.defined()) x = at::cat({token.expand({B, 1, config.width}), x}, 1);
  if (positions.defined()) x = x + positions_for(rows, columns);
  return x;
}

torch::Tensor ClassifierImpl::run(const torch::Tensor& images, uint64_t seed) {
  const torch::Tensor x = run_blocks(
      blocks, embed(images), is_training() ? config.dropout : 0, seed,
      recompute_,
      {images.size(2) / config.patch, images.size(3) / config.patch});
  if (token.defined()) return head(norm(ops::full_precision(x.select(1, 0))));
  return head(norm(ops::full_precision(x)).mean(1));
}

}  // namespace aft::models
