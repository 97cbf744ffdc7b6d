// Layout, names and captions of the heat maps of `aft plot`; their values come
// from aft/tasks/introspection.h.
#include "cli/plot/maps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "aft/base/counted.h"
#include "aft/data/data.h"
#include "aft/data/image_files.h"
#include "aft/data/image_input.h"
#include "aft/io/image.h"
#include "aft/nn/mixer.h"
#include "aft/tasks/introspection.h"
#include "cli/model.h"
#include "cli/plot/page.h"

namespace aft::cli {
namespace {

std::string layer_name(size_t layer) {
  return "layer " + std::to_string(layer + 1);
}
std::string head_name(int64_t head) {
  return "head " + std::to_string(head + 1);
}

/// x [height, width] as a map.
Map map_of(const at::Tensor& x, std::string name, int64_t y0 = 0,
           int64_t x0 = 0) {
  const at::Tensor values = x.to(at::kFloat).contiguous();
  const float* data = values.data_ptr<float>();
  return {x.size(0), x.size(1), {data, data + values.numel()},
          y0,        x0,        std::move(name)};
}

/// A figure with a row per layer and a column for each of the first `most`
/// heads.
Heatmaps by_heads(size_t layers, int64_t heads, int64_t most) {
  Heatmaps figure;
  for (size_t l = 0; l < layers; ++l) figure.row_names.push_back(layer_name(l));
  for (int64_t h = 0; h < std::min(heads, most); ++h)
    figure.column_names.push_back(head_name(h));
  return figure;
}
/// Adds x [heads, height, width] as the next row.
void add_row(const at::Tensor& x, size_t layer, int64_t y0, int64_t x0,
             Heatmaps& figure) {
  for (size_t h = 0; h < figure.column_names.size(); ++h)
    figure.maps.push_back(
        map_of(x[static_cast<int64_t>(h)],
               layer_name(layer) + ", " + figure.column_names[h], y0, x0));
}
std::string first_heads(int64_t heads, int64_t most) {
  return heads > most ? ", the first " + std::to_string(most) + " of " +
                            base::counted(heads, "head")
                      : "";
}

/// A figure with one map per layer, in reading order.
Heatmaps by_layers(const std::vector<tasks::Biases>& all) {
  constexpr size_t kAcross = 6;
  Heatmaps figure;
  const size_t across = std::min(kAcross, all.size()),
               rows = (all.size() + across - 1) / across;
  figure.row_names.resize(rows), figure.column_names.resize(across);
  for (size_t l = 0; l < all.size(); ++l)
    figure.maps.push_back(map_of(all[l].values[0], layer_name(l)));
  figure.maps.resize(rows * across);
  return figure;
}

/// An image as the model sees it, and the input of the model [1, 3, H, W].
std::pair<io::Image, at::Tensor> read(const std::string& path,
                                      const tasks::LabelledConfig& view) {
  const io::Image image = data::centre_crop(io::read_image(path), view.height,
                                            view.width, view.crop);
  at::Tensor input = at::empty({1, 3, view.height, view.width});
  data::normalise(image, input.data_ptr<float>());
  return {image, input};
}

}  // namespace

std::optional<Heatmaps> bias_maps(const torch::nn::Module& module,
                                  const base::Json& model, int64_t most) {
  std::vector<tasks::Biases> all;
  for (const auto& m : module.modules()) {
    const auto mixer = std::dynamic_pointer_cast<nn::Mixer>(m);
    if (!mixer) continue;
    tasks::Biases b = tasks::position_biases(*mixer, kMostCells);
    if (b.values.defined()) all.push_back(std::move(b));
  }
  if (all.empty()) return std::nullopt;
  const at::Tensor& first = all[0].values;
  Heatmaps figure;
  if (!all[0].relative) {
    figure = by_layers(all);
  } else if (first.dim() == 2) {  // 1d: a row per head, a column per tap
    for (size_t l = 0; l < all.size(); ++l) {
      figure.column_names.push_back(layer_name(l));
      figure.maps.push_back(
          map_of(all[l].values, layer_name(l), 1, 1 - all[l].values.size(1)));
    }
    figure.row_names = {""};
    figure.y_name = "head", figure.x_name = "position";
  } else {
    figure = by_heads(all.size(), first.size(0), most);
    for (size_t l = 0; l < all.size(); ++l)
      add_row(all[l].values, l, -(first.size(1) / 2), -(first.size(2) / 2),
              figure);
    figure.y_name = "dy", figure.x_name = "dx";
  }
  figure.name = "biases", figure.title = "Position biases";
  if (all[0].relative) {
    figure.quantity = "exp(w) - 1", figure.colours = Colours::kDiverging;
    figure.caption =
        first.dim() == 2
            ? "exp(w) - 1 of each head (down) by the position of the key "
              "relative to the query (across), layer by layer."
            : "exp(w) - 1 by the position of the key relative to the query, "
              "layers down and heads across" +
                  first_heads(first.size(0), most) + ".";
  } else {
    figure.quantity = "exp(w)", figure.colours = Colours::kSequential;
    figure.y_name = "t", figure.x_name = "j";
    figure.caption =
        "exp(w) of query t (down) and key j (across), layer by layer";
    if (model.value("pool", "") == "token")
      figure.caption += "; t = 0 and j = 0 are the class token";
    if (all[0].block > 1)
      figure.caption += "; averaged over blocks of " +
                        std::to_string(all[0].block) + " x " +
                        std::to_string(all[0].block);
    figure.caption += ".";
  }
  return figure;
}

Heatmaps key_maps(models::ClassifierImpl& classifier,
                  const tasks::LabelledConfig& view, const std::string& path,
                  int64_t most) {
  const auto [image, input] = read(path, view);
  const std::vector<at::Tensor> k = tasks::keys_of(classifier, input);
  Heatmaps figure = by_heads(k.size(), k[0].size(1), most);
  for (size_t l = 0; l < k.size(); ++l) add_row(k[l][0], l, 0, 0, figure);
  figure.title = "Keys of " + path.substr(path.find_last_of('/') + 1);
  figure.caption =
      "Keys k of all patches of the image at the left, layers down and " +
      std::string(k[0].size(1) == classifier.config.width ? "channels"
                                                          : "heads") +
      " across" + first_heads(k[0].size(1), most) + ".";
  figure.quantity = "k", figure.y_name = "row", figure.x_name = "column";
  figure.image = image;
  return figure;
}

Heatmaps attention_maps(models::ClassifierImpl& classifier,
                        const tasks::LabelledConfig& view,
                        const std::string& folder, int64_t limit, bool pairs,
                        int64_t most) {
  tasks::RelativeAttention relative(classifier);
  std::vector<std::string> paths = data::list_images(folder, /*hidden=*/false);
  if (paths.empty())
    throw data::DataError(folder + ": expected PNG or JPEG files, got none");
  const int64_t all = static_cast<int64_t>(paths.size()),
                used = std::min(all, limit);
  ProgressMeter meter("images");
  constexpr int64_t kTogether = 8;
  for (int64_t i = 0; i < used; i += kTogether) {
    std::vector<at::Tensor> batch;
    for (int64_t j = i; j < std::min(used, i + kTogether); ++j)
      batch.push_back(
          read(paths[static_cast<size_t>(j * all / used)], view).second);
    relative.add(at::cat(batch));
    meter.show(relative.images(), used);
  }
  using Divisor = tasks::RelativeAttention::Divisor;
  const at::Tensor mean =
      relative.mean(pairs ? Divisor::kPairs : Divisor::kQueries);
  Heatmaps figure =
      by_heads(static_cast<size_t>(mean.size(0)), mean.size(1), most);
  for (int64_t l = 0; l < mean.size(0); ++l)
    add_row(mean[l], static_cast<size_t>(l), -(mean.size(2) / 2),
            -(mean.size(3) / 2), figure);
  figure.name = "attention", figure.title = "Average relative attention";
  figure.caption =
      "Attention by the position of the key relative to the query, summed over "
      "queries and " +
      base::counted(used, "image") +
      " and divided by the number of images times " +
      (pairs ? "the queries that have a key at that position"
             : "all queries, " + std::to_string((mean.size(2) + 1) / 2 *
                                                ((mean.size(3) + 1) / 2))) +
      "; the class token is excluded. Layers down and heads across" +
      first_heads(mean.size(1), most) + ".";
  figure.quantity = "attention", figure.y_name = "dy", figure.x_name = "dx";
  return figure;
}

}  // namespace aft::cli
