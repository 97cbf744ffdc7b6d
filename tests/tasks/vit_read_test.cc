// Reading the weights of ViT and DeiT: both naming schemes, and errors.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "aft/base/config.h"
#include "aft/tasks/vit_weights.h"
#include "tests/tasks/vit_file.h"

namespace aft::tasks {
namespace {

namespace fs = std::filesystem;

TEST(ReadVit, Timm) {
  const Map m = timm();
  const ClassifierWeights w = read_vit(save(m));
  const auto& c = w.config;
  EXPECT_EQ(c.mixer.name, "attention");
  EXPECT_EQ(c.pool, "token");
  EXPECT_TRUE(c.positions);
  EXPECT_EQ((std::vector<int64_t>{c.width, c.layers, c.mlp, c.patch, c.rows,
                                  c.columns, c.classes,
                                  c.mixer.get<int64_t>("heads")}),
            (std::vector<int64_t>{64, 2, 2, 4, 3, 3, 5, 1}));
  const models::Classifier model(c);
  EXPECT_EQ(names_of(w.tensors), names_of(map_of(models::tensors_of(*model))));
  const auto is = [&](const char* ours, const char* theirs) {
    const torch::Tensor &a = w.tensors.at(ours), &b = m.at(theirs);
    EXPECT_TRUE(same(a.flatten(), b.flatten())) << ours;
  };
  is("patch.weight", "patch_embed.proj.weight");
  is("patch.bias", "patch_embed.proj.bias");
  is("token", "cls_token"), is("positions", "pos_embed");
  is("blocks_1.norm1.weight", "blocks.1.norm1.weight");
  is("blocks_1.norm2.bias", "blocks.1.norm2.bias");
  is("blocks_0.mixer.qkv.weight", "blocks.0.attn.qkv.weight");
  is("blocks_1.mixer.qkv.bias", "blocks.1.attn.qkv.bias");
  is("blocks_1.mixer.out.weight", "blocks.1.attn.proj.weight");
  is("blocks_0.fc1.weight", "blocks.0.mlp.fc1.weight");
  is("blocks_0.fc2.bias", "blocks.0.mlp.fc2.bias");
  is("norm.weight", "norm.weight"), is("head.bias", "head.bias");
  EXPECT_EQ(w.tensors.at("patch.weight").sizes().vec(),
            (std::vector<int64_t>{64, 48}));
  EXPECT_EQ(w.tensors.at("positions").sizes().vec(),
            (std::vector<int64_t>{10, 64}));
}

TEST(ReadVit, HuggingFaceEqualsTimm) {
  const ClassifierWeights expected = read_vit(save(timm()));
  for (const std::string prefix : {"vit.", "deit.", ""}) {
    Map m = hugging_face(timm(), prefix);
    m[prefix + "pooler.dense.weight"] = torch::randn({64, 64});
    const ClassifierWeights w = read_vit(save(m, "hf"));
    EXPECT_EQ(base::to_json(w.config), base::to_json(expected.config));
    ASSERT_EQ(names_of(w.tensors), names_of(expected.tensors));
    for (const auto& [name, x] : expected.tensors)
      EXPECT_TRUE(same(w.tensors.at(name), x)) << prefix << " " << name;
  }
}

TEST(ReadVit, OtherTypesBecomeFloat) {
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    Map m = timm();
    for (auto& [name, x] : m) x = x.to(type);
    const ClassifierWeights w = read_vit(save(m));
    EXPECT_TRUE(same(w.tensors.at("head.weight"),
                     m.at("head.weight").to(torch::kFloat)))
        << type;
  }
}

TEST(ReadVit, HeadsAndHead) {
  Size s;
  s.d = 24;
  EXPECT_EQ(read_vit(save(timm(s))).config.mixer.get<int64_t>("heads"),
            0);  // not known
  EXPECT_EQ(read_vit(save(timm(s)), 4).config.mixer.get<int64_t>("heads"), 4);
  EXPECT_NE(failure([&] { read_vit(save(timm(s)), 5); }).find("heads"),
            std::string::npos);
  s.d = 192;
  EXPECT_EQ(read_vit(save(timm(s))).config.mixer.get<int64_t>("heads"), 3);
  Map m = timm();
  m.erase("head.weight"), m.erase("head.bias");
  const ClassifierWeights w = read_vit(save(m));
  EXPECT_EQ(w.config.classes, 0);
  EXPECT_EQ(w.tensors.count("head.weight"), 0u);
}

TEST(ReadVit, ErrorsNameFileTensorAndShape) {
  using Words = std::vector<std::string>;
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    std::function<void(Map&)> change;
    Words words;
  };
  const auto erase = [](const char* name) {
    return [=](Map& m) { m.erase(name); };
  };
  const auto put = [](const char* name, torch::Tensor x) {
    return [=](Map& m) { m[name] = x; };
  };
  const auto number = [](const char* name, int64_t at, double x) {
    return [=](Map& m) { m.at(name).flatten()[at].fill_(x); };
  };
  const std::vector<Case> cases = {
      {[](Map& m) {
         m = {{"encoder.weight", torch::ones({2})}};
       },
       {"patch_embed.proj.weight", "vit.embeddings.patch_embeddings",
        "deit.embeddings", "'embeddings.patch", "encoder.weight"}},
      {[](Map& m) { m.clear(); }, {"known ViT", "got 0 tensors"}},
      {[](Map& m) {
         m = {{"patch.weight", torch::ones({2})}};
       },
       {"directory"}},
      {erase("patch_embed.proj.weight"), {"patch_embed.proj.weight"}},
      {erase("blocks.1.attn.qkv.bias"), {"blocks.1.attn.qkv.bias"}},
      {erase("norm.weight"), {"norm.weight"}},
      {erase("head.weight"), {"head.weight"}},
      {erase("cls_token"), {"cls_token"}},
      {erase("pos_embed"), {"class token", "'cls_token'", "'pos_embed'"}},
      {put("patch_embed.proj.weight", torch::ones({64, 1, 4, 4})),
       {"patch_embed.proj.weight", "[width, 3, patch, patch]",
        "[64, 1, 4, 4]"}},
      {put("patch_embed.proj.weight", torch::ones({64, 3, 4, 2})),
       {"patch_embed.proj.weight", "[64, 3, 4, 2]"}},
      {put("patch_embed.proj.weight", torch::ones({0, 3, 4, 4})),
       {"patch_embed.proj.weight", "[0, 3, 4, 4]"}},
      {put("pos_embed", torch::ones({1, 13, 64})),
       {"pos_embed", "square", "[1, 13, 64]"}},
      {put("pos_embed", torch::ones({1, 1, 64})), {"pos_embed", "[1, 1, 64]"}},
      {put("pos_embed", torch::ones({10, 64})), {"pos_embed", "[10, 64]"}},
      {put("cls_token", torch::ones({1, 2, 64})),
       {"cls_token", "[1, 1, 64]", "[1, 2, 64]"}},
      {put("blocks.1.norm2.weight", torch::ones({63})),
       {"blocks.1.norm2.weight", "[64]", "[63]"}},
      {put("blocks.0.attn.qkv.weight", torch::ones({64, 64})),
       {"blocks.0.attn.qkv.weight", "[192, 64]", "[64, 64]"}},
      {put("blocks.0.mlp.fc1.weight", torch::ones({100, 64})),
       {"blocks.0.mlp.fc1.weight", "multiple of 64", "[100, 64]"}},
      {put("blocks.1.mlp.fc1.weight", torch::ones({64, 64})),
       {"blocks.1.mlp.fc1.weight", "[128, 64]"}},
      {put("head.weight", torch::ones({5, 32})), {"head.weight", "[5, 32]"}},
      {put("head.bias", torch::ones({6})), {"head.bias", "[5]", "[6]"}},
      {put("norm.bias", torch::ones({64}, torch::kLong)), {"norm.bias", "I64"}},
      {put("blocks.3.norm1.weight", torch::ones({64})),
       {"'blocks.3.'", "no 'blocks.2.'", "gaps"}},
      {[](Map& m) {
         for (auto at = m.begin(); at != m.end();)
           at = at->first.rfind("blocks.", 0) == 0 ? m.erase(at) : ++at;
       },
       {"no blocks", "blocks.0."}},
      {put("dist_token", torch::ones({1, 1, 64})),
       {"distilled", "dist_token", "not supported"}},
      {[](Map& m) {
         m = hugging_face(m, "deit.");
         m["deit.embeddings.distillation_token"] = torch::ones({1, 1, 64});
       },
       {"distilled", "distillation_token"}},
      {put("blocks.0.ls1.gamma", torch::ones({64})),
       {"blocks.0.ls1.gamma", "does not have"}},
      {put("blocks.00.norm1.weight", torch::ones({64})),
       {"blocks.00.norm1.weight", "does not have"}},
      {put("blocks.99999999999999999999.x", torch::ones({64})),
       {"does not have"}},
      {put("pooler.dense.weight", torch::ones({64})), {"pooler"}},
      {number("norm.bias", 3, std::nan("")), {"norm.bias", "nan", "element 3"}},
      {number("blocks.1.attn.proj.weight", 70, -inf),
       {"blocks.1.attn.proj.weight", "-inf", "element 70"}},
      {[](Map& m) {  // finite in its own type only
         m["norm.bias"] = torch::full({64}, 1e300, torch::kDouble);
       },
       {"norm.bias", "inf"}},
      {[](Map& m) {
         m = hugging_face(m, "");
         m.erase("encoder.layer.1.attention.attention.key.bias");
       },
       {"encoder.layer.1.attention.attention.key.bias"}},
      {[](Map& m) {
         m = hugging_face(m, "vit.");
         m["vit.encoder.layer.0.attention.attention.value.weight"] =
             torch::ones({32, 64});
       },
       {"vit.encoder.layer.0.attention.attention.value.weight", "[64, 64]",
        "[32, 64]"}},
  };
  for (const Case& c : cases) {
    Map m = timm();
    c.change(m);
    const std::string path = save(m);
    const std::string why = failure([&] { read_vit(path); });
    EXPECT_NE(why.find(path), std::string::npos) << c.words[0] << ": " << why;
    for (const std::string& word : c.words)
      EXPECT_NE(why.find(word), std::string::npos) << word << ": " << why;
  }
}

/// Any set of tensors is either read or rejected with an io::Error.
TEST(ReadVit, NeverCrashes) {
  Size s;
  s.d = 8, s.classes = 3;
  const Map good = timm(s), other_names = hugging_face(good, "vit.");
  std::mt19937 random(5);
  const auto pick = [&](size_t n) { return random() % n; };
  const int64_t sizes[] = {0, 1, 2, 3, 8, 9, 16, 24, 10, 4};
  int read = 0;
  for (int i = 0; i < 200; ++i) {
    Map m = i % 2 ? good : other_names;
    for (size_t edits = 1 + pick(2); edits > 0; --edits) {
      const auto at = std::next(m.begin(), static_cast<long>(pick(m.size())));
      std::vector<int64_t> shape = at->second.sizes().vec();
      switch (pick(5)) {
        case 0:
          m.erase(at);
          break;
        case 1:
          shape[pick(shape.size())] = sizes[pick(10)];
          at->second = torch::ones(shape);
          break;
        case 2:
          shape.assign(pick(6), 0);
          for (int64_t& n : shape) n = sizes[pick(10)];
          if (pick(4) == 0) shape.push_back(int64_t{1} << 40), shape[0] = 0;
          at->second = torch::empty(shape);
          break;
        case 3:
          at->second = at->second.to(pick(2) ? torch::kBool : torch::kHalf);
          break;
        case 4:
          m[at->first + (pick(2) ? ".weight" : "")] = torch::ones({2});
          break;
      }
    }
    const std::string path = save(m);
    try {
      read_vit(path);
      ++read;
    } catch (const io::Error&) {
    }
  }
  EXPECT_GT(read, 2);  // other types, no head
  EXPECT_LT(read, 100);
}

// ---- Real weights -----------------------------------------------------------

TEST(ReadVit, DeiTTinyReproducesItsLogits) {
  const char* data = std::getenv("AFT_DATA");
  const fs::path from = fs::path(data ? data : "") / "deit_tiny";
  if (!data || !fs::exists(from)) GTEST_SKIP() << "AFT_DATA has no deit_tiny";
  const ClassifierWeights w =
      read_vit(from / "deit_tiny_patch16_224.safetensors");
  EXPECT_EQ(w.config.mixer.get<int64_t>("heads"), 3);
  models::Classifier model(w.config);
  EXPECT_TRUE(transfer(w, *model).fresh.empty());
  int64_t parameters = 0;
  for (const auto& p : model->parameters()) parameters += p.numel();
  EXPECT_EQ(parameters, 5717416);
  const auto read = [&](const char* name, torch::Tensor to) {
    std::ifstream in(from / name, std::ios::binary);
    in.read(static_cast<char*>(to.data_ptr()),
            static_cast<std::streamsize>(to.numel() * to.element_size()));
    EXPECT_TRUE(in.good()) << name;
    return to;
  };
  const torch::Tensor pixels =
      read("ref_images_8x224x224x3_u8_rgb_hwc.bin",
           torch::empty({8, 224, 224, 3}, torch::kByte));
  const torch::Tensor expected =
      read("ref_logits_8x1000_f32.bin", torch::empty({8, 1000}));
  const torch::Tensor mean = torch::tensor({0.485f, 0.456f, 0.406f}),
                      deviation = torch::tensor({0.229f, 0.224f, 0.225f});
  const torch::Tensor images =
      ((pixels.to(torch::kFloat) / 255 - mean) / deviation)
          .permute({0, 3, 1, 2})
          .contiguous();
  model->eval();
  torch::NoGradGuard no_grad;
  const torch::Tensor logits = model->forward(images);
  const double worst = (logits - expected).abs().max().item<double>();
  RecordProperty("largest_difference", std::to_string(worst));
  EXPECT_LT(worst, 1e-3);
  EXPECT_TRUE(same(logits.argmax(1), expected.argmax(1)));
}

}  // namespace
}  // namespace aft::tasks
