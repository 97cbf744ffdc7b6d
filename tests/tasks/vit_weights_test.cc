// Weights of ViT and DeiT: exported bit-exactly to the file they came from, and
// transferred to models with another mixer.
#include "aft/tasks/vit_weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "aft/io/file.h"
#include "aft/tasks/task.h"
#include "tests/tasks/vit_file.h"

namespace aft::tasks {
namespace {

/// A model like `from`, with another mixer.
models::Classifier other(models::ClassifierConfig c, const std::string& mixer) {
  c.mixer = mixer;
  c.mixer.set({{"window", 3}, {"rank", 4}, {"heads", 2}});
  c.follow_mixer();
  torch::manual_seed(3);
  return models::Classifier(c);
}

void stir(models::ClassifierImpl& model) {
  torch::NoGradGuard no_grad;
  for (auto& p : model.parameters()) p.add_(0.3 * torch::randn_like(p));
}

// ---- Export -----------------------------------------------------------------

TEST(ExportNames, RoundTripsBitExactly) {
  const Map m = timm();
  const ClassifierWeights w = read_vit(save(m));
  models::Classifier model(w.config);
  transfer(w, *model);
  for (const auto& [style, expected] : {std::pair<std::string, Map>{"timm", m},
                                        {"hf", hugging_face(m, "vit.")}}) {
    const Map out = map_of(export_names(*model, style));
    ASSERT_EQ(names_of(out), names_of(expected));
    for (const auto& [name, x] : expected)
      EXPECT_TRUE(same(out.at(name), x)) << name;  // shapes too
    const ClassifierWeights again = read_vit(save(out, style));
    for (const auto& [name, x] : w.tensors)
      EXPECT_TRUE(same(again.tensors.at(name), x)) << style << " " << name;
  }
  const Map ours = map_of(export_names(*model, "aft"));
  EXPECT_EQ(names_of(ours), names_of(w.tensors));
}

TEST(ExportNames, OfAFT) {
  const models::ClassifierConfig vit = read_vit(save(timm())).config;
  const std::map<std::string, std::vector<std::string>> own = {
      {"aft-conv", {"w", "gamma", "beta"}},
      {"aft-full", {"u", "v"}},
      {"aft-simple", {}}};
  for (const auto& [mixer, biases] : own) {
    models::Classifier model = other(vit, mixer);
    Map expected = timm();
    for (const char* i : {"0", "1"}) {
      const std::string attn = "blocks." + std::string(i) + ".attn.";
      for (const char* leaf : {".weight", ".bias"}) {
        expected.erase(attn + "qkv" + leaf);
        for (const char* part : {"query", "key", "value"})
          expected[attn + part + leaf];
      }
      for (const std::string& bias : biases) expected[attn + bias];
    }
    if (mixer == "aft-conv")
      expected.erase("cls_token"), expected.erase("pos_embed");
    const Map out = map_of(export_names(*model, "timm"));
    EXPECT_EQ(names_of(out), names_of(expected)) << mixer;
    const auto ours = map_of(models::tensors_of(*model));
    EXPECT_TRUE(same(out.at("blocks.1.attn.key.weight"),
                     ours.at("blocks_1.mixer.key.weight")));
    EXPECT_TRUE(same(out.at("blocks.1.attn.proj.bias"),
                     ours.at("blocks_1.mixer.out.bias")));
    if (mixer == "aft-conv") {
      EXPECT_TRUE(same(out.at("blocks.0.attn.w"), ours.at("blocks_0.mixer.w")));
    }
    EXPECT_NE(failure([&] { export_names(*model, "hf"); }).find(mixer),
              std::string::npos);
    EXPECT_NE(failure([&] { export_names(*model, "onnx"); }).find("'onnx'"),
              std::string::npos);
  }
}

// ---- Transfer ---------------------------------------------------------------

TEST(Transfer, AttentionCopiesEverything) {
  const ClassifierWeights w = read_vit(save(timm()));
  models::Classifier model(w.config);
  const Transfer t = transfer(w, *model);
  EXPECT_TRUE(t.fresh.empty());
  EXPECT_EQ(t.copied.size(), w.tensors.size());
  for (const auto& [name, x] : models::tensors_of(*model))
    EXPECT_TRUE(same(x, w.tensors.at(name))) << name;
}

TEST(Transfer, AFTCopiesAllButQueriesKeysAndUnsharedTensors) {
  const ClassifierWeights w = read_vit(save(timm()));
  const int64_t d = 64;
  for (const std::string mixer :
       {"aft-conv", "aft-full", "aft-local", "aft-simple"}) {
    models::Classifier model = other(w.config, mixer);
    stir(*model);
    Map before;
    for (const auto& [name, x] : models::tensors_of(*model))
      before[name] = x.clone();
    const Transfer t = transfer(w, *model);
    const std::set<std::string> fresh(t.fresh.begin(), t.fresh.end()),
        copied(t.copied.begin(), t.copied.end());
    EXPECT_EQ(fresh.size() + copied.size(), before.size());
    EXPECT_EQ(before.count("token"), mixer == "aft-conv" ? 0u : 1u);
    for (const auto& [name, x] : models::tensors_of(*model)) {
      const std::string part = name.substr(
          name.find("mixer.") == std::string::npos ? 0 : name.find("mixer."));
      const bool own = part.rfind("mixer.", 0) == 0 &&
                       part.rfind("mixer.value", 0) != 0 &&
                       part.rfind("mixer.out", 0) != 0;
      EXPECT_EQ(fresh.count(name), own ? 1u : 0u) << mixer << " " << name;
      if (own) {
        EXPECT_TRUE(same(x, before.at(name))) << mixer << " " << name;
      } else if (part.rfind("mixer.value", 0) != 0) {
        EXPECT_TRUE(same(x, w.tensors.at(name))) << mixer << " " << name;
      }
    }
    const auto now = map_of(models::tensors_of(*model));
    for (const std::string leaf : {".weight", ".bias"})
      EXPECT_TRUE(same(now.at("blocks_1.mixer.value" + leaf),
                       w.tensors.at("blocks_1.mixer.qkv" + leaf)
                           .slice(0, 2 * d, 3 * d)
                           .contiguous()))
          << mixer;
    EXPECT_EQ(fresh.count("blocks_1.mixer.query.weight"), 1u);
    EXPECT_EQ(fresh.count("blocks_0.mixer.key.bias"), 1u);
  }
}

TEST(Transfer, OtherClassesAndOtherGrid) {
  const ClassifierWeights w = read_vit(save(timm()));
  models::ClassifierConfig c = w.config;
  c.classes = 4, c.rows = 2, c.columns = 5;
  models::Classifier model(c);
  const torch::Tensor head = model->head->weight.detach().clone();
  const Transfer t = transfer(w, *model);
  EXPECT_EQ(t.fresh, (std::vector<std::string>{"head.weight", "head.bias"}));
  EXPECT_TRUE(same(model->head->weight.detach(), head));
  const torch::Tensor &from = w.tensors.at("positions"),
                      to = model->positions.detach();
  EXPECT_TRUE(same(to, models::interpolate_positions(from, 1, 3, 3, 2, 5)));
  EXPECT_TRUE(same(to[0], from[0]));

  // 4 x 9 has as many positions as 6 x 6, but on a different grid.
  Size s;
  s.side = 6;
  const ClassifierWeights six = read_vit(save(timm(s)));
  c.rows = 4, c.columns = 9;
  models::Classifier flat(c);
  transfer(six, *flat);
  EXPECT_FALSE(same(flat->positions.detach(), six.tensors.at("positions")));
  // Without a class token, only the positions of the patches.
  c = six.config, c.pool = "mean", c.mixer = "aft-simple";
  models::Classifier mean(c);
  transfer(six, *mean);
  EXPECT_TRUE(same(mean->positions.detach(),
                   six.tensors.at("positions").slice(0, 1).contiguous()));
}

TEST(Transfer, RejectsOtherSizes) {
  const ClassifierWeights w = read_vit(save(timm()));
  models::ClassifierConfig c = w.config;
  c.width = 128, c.layers = 3, c.mlp = 4, c.patch = 8;
  c.mixer.set({{"heads", 2}});
  models::Classifier model(c);
  const std::string why = failure([&] { transfer(w, *model); });
  for (const char* word :
       {"vit.safetensors", "layers 2 (here 3)", "width 64 (here 128)",
        "mlp 2 (here 4)", "patch 4 (here 8)", "heads 1 (here 2)"})
    EXPECT_NE(why.find(word), std::string::npos) << why;
}

/// A model directory.
std::string directory(models::ClassifierImpl& model, const std::string& name) {
  const std::string path = folder(name);
  const auto& c = model.config;
  const Json config{
      {"task", "classification"},
      {"model", base::to_json(c)},
      {"data", {{"height", c.rows * c.patch}, {"width", c.columns * c.patch}}}};
  io::write_file(path + "/config.json", config.dump());
  models::save_tensors(path + "/model.safetensors", models::tensors_of(model));
  return path;
}

TEST(Initialise, FromADirectoryOrAFile) {
  const ClassifierWeights w = read_vit(save(timm()));
  for (const std::string& mixer : nn::mixer_kinds(false)) {
    models::Classifier from = other(w.config, mixer),
                       to = other(w.config, mixer);
    stir(*from);
    const Transfer t = initialise(*to, directory(*from, "own"));
    EXPECT_TRUE(t.fresh.empty()) << mixer << " " << t.fresh[0];
    const Map expected = map_of(models::tensors_of(*from));
    for (const auto& [name, x] : models::tensors_of(*to))
      EXPECT_TRUE(same(x, expected.at(name))) << mixer << " " << name;
  }
  // The same as from the file.
  models::Classifier vit(w.config), a = other(w.config, "aft-conv"),
                                    b = other(w.config, "aft-conv");
  transfer(w, *vit);
  const Transfer one = initialise(*a, directory(*vit, "own")),
                 two = initialise(*b, save(timm()));
  EXPECT_EQ(one.copied, two.copied);
  EXPECT_EQ(one.fresh, two.fresh);
  EXPECT_EQ(one.copied.size(), 30u);  // weights and biases of 3 + 2 x 6
  for (const auto& [name, x] : models::tensors_of(*a))
    EXPECT_TRUE(same(x, map_of(models::tensors_of(*b)).at(name))) << name;
  // The number of heads comes from the model, as the file does not record it.
  models::ClassifierConfig c = w.config;
  c.mixer.set({{"heads", 4}});
  models::Classifier four(c);
  EXPECT_TRUE(initialise(*four, save(timm())).fresh.empty());
  EXPECT_NE(failure([&] {
              initialise(*four, directory(*vit, "own"));
            }).find("heads 1 (here 4)"),
            std::string::npos);
}

TEST(Initialise, BiasesKeepTheirMeaning) {
  const models::ClassifierConfig vit = read_vit(save(timm())).config;
  const auto fresh = [](models::Classifier from,
                        const models::ClassifierConfig& c) {
    models::Classifier to(c);
    const Transfer t = initialise(*to, directory(*from, "own"));
    std::set<std::string> out;
    for (const std::string& name : t.fresh)
      out.insert(name.substr(name.rfind("mixer.") == std::string::npos
                                 ? 0
                                 : name.rfind("mixer.")));
    return out;
  };
  using Names = std::set<std::string>;
  models::Classifier conv = other(vit, "aft-conv"),
                     full = other(vit, "aft-full");
  models::ClassifierConfig c = conv->config;
  c.mixer.set({{"naive", true}});
  EXPECT_EQ(fresh(conv, c), Names{"mixer.w"});
  c = conv->config, c.mixer.set({{"window", 5}});
  EXPECT_EQ(fresh(conv, c), Names{"mixer.w"});
  c = conv->config, c.rows = 7;  // any size, with the same weights
  EXPECT_EQ(fresh(conv, c), Names{});
  c = full->config, c.classes = 2;
  EXPECT_EQ(fresh(full, c), (Names{"head.weight", "head.bias"}));
  c = full->config, c.rows = 1, c.columns = 9;  // the same number of positions
  EXPECT_EQ(fresh(full, c), (Names{"mixer.u", "mixer.v"}));
  EXPECT_EQ(fresh(full, other(vit, "attention")->config),
            (Names{"mixer.qkv.weight", "mixer.qkv.bias"}));
}

}  // namespace
}  // namespace aft::tasks
