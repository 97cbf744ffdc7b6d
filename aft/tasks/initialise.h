// Initial weights of a new model, copied from another model.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "aft/nn/mixer.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

/// Which tensors were copied from another model, and which keep their initial
/// values. A classification head of which some rows were copied is in both.
struct Transfer {
  std::vector<std::string> copied, fresh;  ///< names of tensors, in order
};

/// A readable summary of tensor names, with blocks merged: "36 tensors: patch,
/// blocks.norm1, ...".
std::string summary(const std::vector<std::string>& names);

/// The tensor for `name` of a model with the mixer `to`, from `tensors` of a
/// model with the mixer `from`. The values of AFT come from the rows of
/// attention's qkv. Undefined if there is none: for queries and keys between
/// attention and AFT, and for relative biases of another kind.
torch::Tensor matching_tensor(
    const std::map<std::string, torch::Tensor>& tensors,
    const nn::MixerConfig& from, const nn::MixerConfig& to,
    const std::string& name);

/// Copies every tensor that matches in name, shape and meaning from the model
/// in the directory `path` to `model`, whose configuration is `config`. Both
/// must be of the same task, with the same sizes of blocks. Of position
/// embeddings and biases for another length, the positions that both have are
/// copied. A classifier can also be initialised from a safetensors file of ViT
/// or DeiT (vit_weights.h). Throws io::Error, ConfigError.
///
/// The outputs of a classifier are copied by class: those of classes that the
/// model in `path` knows by name (class_names.h), and `config` takes over its
/// names of classes. If the classes of one have no names, all or none are
/// copied, depending on their number.
Transfer initialise(torch::nn::Module& model, Json& config,
                    const std::string& path);

/// Copies `from`, which may be undefined, to tensor `name` of a new model, if
/// the shapes are equal. With `rows`, copies row rows[i] to row i, unless
/// rows[i] is -1; the number of rows may then differ. Adds the name to `out`.
void copy_tensor(const torch::Tensor& from, const std::string& name,
                 torch::Tensor to, const std::vector<int64_t>& rows,
                 Transfer& out);

}  // namespace aft::tasks
