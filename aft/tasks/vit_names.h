// How timm and Hugging Face name the tensors of a ViT, and how they shape them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aft::tasks {

using Shape = std::vector<int64_t>;

struct VitStyle {
  bool hf = false;     ///< Hugging Face's names; otherwise timm's
  std::string prefix;  ///< of Hugging Face: "vit.", "deit." or nothing
  /// What comes before the number of a block.
  std::string blocks() const;
};

/// A tensor of a file.
struct Stored {
  std::string name;
  Shape shape;
};

/// Where the tensor `ours` of a Classifier lies in a file: one tensor there, or
/// three whose rows follow one another (queries, keys, values).
std::vector<Stored> stored_as(const VitStyle& style, const std::string& ours,
                              Shape shape, int64_t patch);

bool begins(const std::string& text, const std::string& with);
bool ends(const std::string& text, const std::string& with);

}  // namespace aft::tasks
