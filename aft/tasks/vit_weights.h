// Weights of ViT and DeiT as timm and Hugging Face name them, to our names and
// back; and what a classifier can begin with of the weights of another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "aft/models/classifier.h"
#include "aft/train/checkpoint.h"

namespace aft::tasks {

/// The weights of a classifier by our names, in float.
struct ClassifierWeights {
  std::string path;  ///< where they come from
  models::ClassifierConfig config;
  std::map<std::string, torch::Tensor> tensors;
};

/// A ViT or DeiT from a safetensors file with the names of timm or of Hugging
/// Face; half precisions and double become float. The configuration follows
/// from the shapes. Not in them: heads, which is as told, or width / 64, or 0
/// where that is no whole number. A file without a head has classes = 0 and no
/// tensors head.*. Trusts nothing in the file. Throws io::Error, which names
/// the file, the tensor, what was expected and what came: names of neither
/// kind, tensors that are missing, of a wrong shape, not finite or not known,
/// and distilled models.
ClassifierWeights read_vit(const std::string& path, int64_t heads = 0);

/// What a model has got from another, and what keeps its first weights.
struct Transfer {
  std::vector<std::string> copied, fresh;  ///< names of tensors, in order
};

/// Names of tensors for people, blocks taken together: "36 tensors: patch,
/// blocks.norm1, ...".
std::string summary(const std::vector<std::string>& names);

/// Fills a model with what fits by name, shape and meaning. Between attention
/// and AFT that is everything but queries, keys and what only one of them has,
/// as in the paper ("Compatibility with Transformers"): values come from their
/// rows of qkv. Positions of another grid are interpolated; a head of other
/// size stays as it is. Throws io::Error where layers, width, mlp or patch (for
/// attention: heads) differ. Not for a model that was folded.
Transfer transfer(const ClassifierWeights& from, models::ClassifierImpl& to);

/// The same from a ViT file, or from the directory of a model of ours. Throws
/// io::Error, ConfigError.
Transfer initialise(models::ClassifierImpl& model, const std::string& path);

/// The weights of a model by the names "timm", "hf" (Hugging Face; attention
/// with a class token only) or "aft" (ours). AFT has no names in timm: there
/// they are blocks.N.attn.query and so on. Throws io::Error.
train::NamedTensors export_names(const models::ClassifierImpl& model,
                                 const std::string& style);

}  // namespace aft::tasks
