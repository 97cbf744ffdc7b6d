// Names and shapes of a ViT's tensors in timm and Hugging Face.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aft::tasks {

using Shape = std::vector<int64_t>;

struct VitStyle {
  bool hf = false;     ///< Hugging Face's names; otherwise timm's
  std::string prefix;  ///< Hugging Face only: "vit.", "deit." or ""
  /// The prefix before the index of a block.
  std::string blocks() const;
};

/// A tensor in a file.
struct Stored {
  std::string name;
  Shape shape;
};

/// Where the tensor `ours` of a Classifier is stored in a file: one tensor, or
/// three to be concatenated by rows (queries, keys, values).
std::vector<Stored> stored_as(const VitStyle& style, const std::string& ours,
                              Shape shape, int64_t patch);

bool begins(const std::string& text, const std::string& with);
bool ends(const std::string& text, const std::string& with);

}  // namespace aft::tasks
