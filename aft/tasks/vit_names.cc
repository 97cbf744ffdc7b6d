#include "aft/tasks/vit_names.h"

namespace aft::tasks {
namespace {

struct Name {
  const char *ours, *timm, *hf;
};
constexpr Name kOutside[] = {
    {"patch", "patch_embed.proj", "embeddings.patch_embeddings.projection"},
    {"token", "cls_token", "embeddings.cls_token"},
    {"positions", "pos_embed", "embeddings.position_embeddings"},
    {"norm", "norm", "layernorm"},
    {"head", "head", "classifier"}};
constexpr Name kInside[] = {
    {"norm1", "norm1", "layernorm_before"},
    {"mixer.qkv", "attn.qkv", "attention.attention"},  // hf: three tensors
    {"mixer.out", "attn.proj", "attention.output.dense"},
    {"norm2", "norm2", "layernorm_after"},
    {"fc1", "mlp.fc1", "intermediate.dense"},
    {"fc2", "mlp.fc2", "output.dense"}};

/// AFT's own tensors have no established names: mixer.query becomes attn.query.
std::string theirs(const VitStyle& style, const std::string& stem,
                   bool inside) {
  if (inside) {
    for (const Name& n : kInside)
      if (stem == n.ours) return style.hf ? n.hf : n.timm;
    return "attn." + stem.substr(stem.find('.') + 1);
  }
  for (const Name& n : kOutside)
    if (stem == n.ours) return style.hf ? n.hf : n.timm;
  return stem;
}

}  // namespace

bool begins(const std::string& text, const std::string& with) {
  return text.compare(0, with.size(), with) == 0;
}

bool ends(const std::string& text, const std::string& with) {
  return text.size() >= with.size() &&
         text.compare(text.size() - with.size(), with.size(), with) == 0;
}

std::string VitStyle::blocks() const {
  return hf ? prefix + "encoder.layer." : "blocks.";
}

std::vector<Stored> stored_as(const VitStyle& style, const std::string& ours,
                              Shape shape, int64_t patch) {
  std::string before = style.prefix, stem = ours, leaf;
  const bool inside = begins(ours, "blocks_");
  if (inside) {
    const size_t dot = ours.find('.');
    before = style.blocks() + ours.substr(7, dot - 7) + ".";
    stem = ours.substr(dot + 1);
  }
  for (const char* end : {".weight", ".bias"}) {
    if (!ends(stem, end)) continue;
    leaf = end;
    stem.resize(stem.size() - leaf.size());
  }
  if (stem == "token") shape = {1, 1, shape[0]};
  if (stem == "positions") shape = {1, shape[0], shape[1]};
  if (ours == "patch.weight") shape = {shape[0], 3, patch, patch};
  if (style.hf && stem == "head") before.clear();
  const std::string name = before + theirs(style, stem, inside);
  if (!style.hf || stem != "mixer.qkv") return {{name + leaf, shape}};
  shape[0] /= 3;
  return {{name + ".query" + leaf, shape},
          {name + ".key" + leaf, shape},
          {name + ".value" + leaf, shape}};
}

}  // namespace aft::tasks
