// The heat maps of `aft plot`: position biases, keys and relative attention of
// a model. The caller sets the colour scale. `most` limits the number of heads
// shown.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>

#include "aft/base/config.h"
#include "aft/models/classifier.h"
#include "aft/tasks/classification.h"
#include "cli/plot/heatmap.h"

namespace aft::cli {

/// The position biases of a model; `model` is the section "model" of its
/// configuration. Returns nullopt if no mixer has position biases.
std::optional<Heatmaps> bias_maps(const torch::nn::Module& module,
                                  const base::Json& model, int64_t most);

/// The keys for the image at `path`. The caller sets the name of the figure, as
/// there may be several images. Throws io::Error if the file is not an image,
/// c10::Error if the mixer is not AFT.
Heatmaps key_maps(models::ClassifierImpl& classifier,
                  const tasks::LabelledConfig& view, const std::string& path,
                  int64_t most);

/// Relative attention, averaged over at most `limit` images of a folder, with
/// progress on stderr. pairs: divide each offset by the number of queries that
/// have a key there. Throws DataError, io::Error, and c10::Error if the mixer
/// is not attention.
Heatmaps attention_maps(models::ClassifierImpl& classifier,
                        const tasks::LabelledConfig& view,
                        const std::string& folder, int64_t limit, bool pairs,
                        int64_t most);

}  // namespace aft::cli
