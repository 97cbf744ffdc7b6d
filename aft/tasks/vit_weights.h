// Converts weights of ViT and DeiT between the names of timm and Hugging Face
// and ours, and initialises a classifier from the weights of another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "aft/models/classifier.h"
#include "aft/models/weights.h"
#include "aft/tasks/initialise.h"

namespace aft::tasks {

/// The weights of a classifier in float, with our names.
struct ClassifierWeights {
  std::string path;  ///< their source
  models::ClassifierConfig config;
  std::map<std::string, torch::Tensor> tensors;
};

/// Reads a ViT or DeiT from a safetensors file with timm's or Hugging Face's
/// names; half precision and double become float. The configuration follows
/// from the shapes, except for heads, which is the argument or, if that is 0,
/// width / 64, or 0 if that is not an integer. A file without a classification
/// head gives classes = 0 and no tensors head.*. The file is untrusted. Throws
/// io::Error, which names the file, the tensor, and what was expected and
/// found, for names of neither kind, for tensors that are missing, unknown, not
/// finite or of the wrong shape, and for distilled models.
ClassifierWeights read_vit(const std::string& path, int64_t heads = 0);

/// Copies every tensor that matches in name, shape and meaning. Between
/// attention and AFT these are all except queries, keys and tensors that only
/// one of them has, as in the paper ("Compatibility with Transformers"); values
/// come from their rows of qkv. Position embeddings of another grid are
/// interpolated. Row i of the classification head is row rows[i] of `from`,
/// unless rows[i] is -1; without `rows`, a head of another size is left
/// unchanged. Throws io::Error if layers, width, mlp or patch (for attention
/// also heads) differ. The model must not be folded.
Transfer transfer(const ClassifierWeights& from, models::ClassifierImpl& to,
                  const std::vector<int64_t>& rows = {});

/// The same from a ViT file or one of our model directories. Throws io::Error,
/// ConfigError.
Transfer initialise(models::ClassifierImpl& model, const std::string& path,
                    const std::vector<int64_t>& rows = {});

/// The weights of a model with the names of `style`: "timm", "hf" (Hugging
/// Face; only attention with a class token) or "aft" (ours). timm has no names
/// for AFT's own tensors; they become blocks.N.attn.query and so on. Throws
/// io::Error.
models::NamedTensors export_names(const models::ClassifierImpl& model,
                                  const std::string& style);

}  // namespace aft::tasks
