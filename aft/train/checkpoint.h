// Tensors by name on disk: weights and the state of training, as safetensors.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace aft::train {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Parameters and buffers of a model, with a prefix before their names.
NamedTensors tensors_of(const torch::nn::Module& model,
                        const std::string& prefix = "");

/// Writes a file in one step: the old one stays until the new one is whole.
/// Throws io::Error.
void save_tensors(const std::string& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {});

/// Fills `tensors` from a file, which must have each of them with its shape and
/// type, and finite numbers; extra ones in the file are an error where `all`.
/// Nothing is changed unless everything fits. Returns the metadata. Throws
/// io::Error, which names the file, the tensor, what was expected and what
/// came.
std::map<std::string, std::string> load_tensors(const std::string& path,
                                                const NamedTensors& tensors,
                                                bool all = true);

/// Throws io::Error, which names the file, the tensor and the first element,
/// unless all numbers in x are finite. Whole numbers are.
void check_finite(const std::string& path, const std::string& name,
                  const torch::Tensor& x);

}  // namespace aft::train
