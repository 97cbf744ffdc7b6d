// The heat maps of `aft plot`, of what a model has inside: position biases,
// keys and relative attention. The scale of their colours is the caller's.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>

#include "aft/models/classifier.h"
#include "aft/models/config.h"
#include "aft/tasks/classification.h"
#include "cli/figures/heatmap.h"

namespace aft::cli {

/// The position biases of a model whose configuration has this part "model";
/// none where no mixer has any. Here and below, of more than `most` heads only
/// the first ones.
std::optional<Heatmaps> bias_maps(const torch::nn::Module& module,
                                  const models::Json& model, int64_t most);

/// The keys of a picture, without a name: there may be several. Throws
/// io::Error for a file that is no picture, c10::Error for a mixer that is no
/// AFT.
Heatmaps key_maps(models::ClassifierImpl& classifier,
                  const tasks::LabelledConfig& view, const std::string& path,
                  int64_t most);

/// What attention looks at in the mean over at most `limit` pictures of a
/// folder; with progress on stderr. pairs: divided by the queries that have a
/// key there. Throws DataError, io::Error, and c10::Error for a mixer that is
/// not attention.
Heatmaps attention_maps(models::ClassifierImpl& classifier,
                        const tasks::LabelledConfig& view,
                        const std::string& folder, int64_t limit, bool pairs,
                        int64_t most);

}  // namespace aft::cli
