// Shared by the tests of ViT weights: files created tensor by tensor, with
// literal names, independently of the code under test.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <set>
#include <string>

#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "tests/scratch.h"

namespace aft::tasks {

using Map = std::map<std::string, torch::Tensor>;

struct Size {
  int64_t d = 64, layers = 2, mlp = 2, patch = 4, side = 3, classes = 5;
};

/// A ViT as timm saves it.
inline Map timm(const Size& s = {}) {
  torch::manual_seed(7);
  Map m;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    m[name + ".weight"] = torch::randn({out, in}) * 0.2;
    m[name + ".bias"] = torch::randn({out}) * 0.2;
  };
  const auto norm = [&](const std::string& name) {
    m[name + ".weight"] = 1 + torch::randn({s.d}) * 0.2;
    m[name + ".bias"] = torch::randn({s.d}) * 0.2;
  };
  m["patch_embed.proj.weight"] = torch::randn({s.d, 3, s.patch, s.patch}) * 0.2;
  m["patch_embed.proj.bias"] = torch::randn({s.d});
  m["cls_token"] = torch::randn({1, 1, s.d});
  m["pos_embed"] = torch::randn({1, 1 + s.side * s.side, s.d});
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    norm(block + "norm1"), norm(block + "norm2");
    linear(block + "attn.qkv", 3 * s.d, s.d);
    linear(block + "attn.proj", s.d, s.d);
    linear(block + "mlp.fc1", s.mlp * s.d, s.d);
    linear(block + "mlp.fc2", s.d, s.mlp * s.d);
  }
  norm("norm"), linear("head", s.classes, s.d);
  return m;
}

/// The same as transformers saves it.
inline Map hugging_face(const Map& from, const std::string& prefix) {
  const auto with = [](std::string name, const std::string& old,
                       const std::string& now) {
    const size_t at = name.find(old);
    return at == std::string::npos ? name : name.replace(at, old.size(), now);
  };
  Map m;
  for (const auto& [name, x] : from) {
    if (name.find("qkv") != std::string::npos) {
      const auto parts = x.chunk(3);
      const char* names[] = {"query", "key", "value"};
      for (size_t i = 0; i < 3; ++i) {
        const std::string n = with(name, "blocks.", "encoder.layer.");
        m[prefix +
          with(n, "attn.qkv", std::string("attention.attention.") + names[i])] =
            parts[i].clone();
      }
      continue;
    }
    std::string n = name;
    if (n.rfind("norm.", 0) == 0) n = "layer" + n;
    n = with(n, "blocks.", "encoder.layer.");
    n = with(n, "norm1", "layernorm_before");
    n = with(n, "norm2", "layernorm_after");
    n = with(n, "attn.proj", "attention.output.dense");
    n = with(n, "mlp.fc1", "intermediate.dense");
    n = with(n, "mlp.fc2", "output.dense");
    n = with(n, "cls_token", "embeddings.cls_token");
    n = with(n, "pos_embed", "embeddings.position_embeddings");
    n = with(n, "patch_embed.proj", "embeddings.patch_embeddings.projection");
    n = with(n, "head.", "classifier.");
    m[n.rfind("classifier.", 0) == 0 ? n : prefix + n] = x;
  }
  return m;
}

inline std::string save(const Map& m, const std::string& name = "vit") {
  const std::string path = scratch() + "/" + name + ".safetensors";
  models::save_tensors(path, {m.begin(), m.end()});
  return path;
}

/// The message of the io::Error that f() throws; "" if it throws none.
inline std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const io::Error& e) {
    return e.what();
  }
  return "";
}

inline bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.equal(b);
}

inline std::set<std::string> names_of(const Map& m) {
  std::set<std::string> out;
  for (const auto& item : m) out.insert(item.first);
  return out;
}

inline Map map_of(const models::NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

}  // namespace aft::tasks
