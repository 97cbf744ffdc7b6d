// Reads and writes the tensors of modules, and other named tensors, as
// safetensors.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace aft::models {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// The parameters and buffers of a model. `prefix` is prepended to their names.
NamedTensors tensors_of(const torch::nn::Module& model,
                        const std::string& prefix = "");

/// A hash of the names, types, shapes and values of tensors, as 16 hexadecimal
/// digits.
std::string fingerprint(const NamedTensors& tensors);

/// Writes the file atomically, with a checksum in its metadata: the old file
/// stays until the new one is complete. Throws io::Error.
void save_tensors(const std::string& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {});

/// Fills `tensors` from a file, which must hold each of them with the same
/// shape and type and only finite values, and, unless `more`, no others. Either
/// all tensors are filled or none. Returns the metadata. Throws io::Error,
/// which names the file, the tensor, and what was expected and found; also if
/// the file has a checksum that does not match.
std::map<std::string, std::string> load_tensors(const std::string& path,
                                                const NamedTensors& tensors,
                                                bool more = false);

/// Throws io::Error, which names the file, the tensor and the first bad
/// element, unless every element of x is finite. Integer tensors always pass.
void check_finite(const std::string& path, const std::string& name,
                  const torch::Tensor& x);

}  // namespace aft::models
