#include "aft/tasks/vit_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "aft/base/counted.h"
#include "aft/base/escape.h"
#include "aft/io/run_directory.h"
#include "aft/io/safetensors.h"
#include "aft/tasks/memory_limit.h"
#include "aft/tasks/task.h"
#include "aft/tasks/vit_names.h"

namespace aft::tasks {
namespace {

std::string shape_text(const Shape& shape) {
  return c10::str(at::IntArrayRef(shape));
}

/// The tensors of a ViT with our names and shapes.
std::vector<Stored> tensors_for(const models::ClassifierConfig& c) {
  const int64_t d = c.width;
  std::vector<Stored> out;
  const auto add = [&](const std::string& name, const Shape& weight) {
    out.push_back({name + ".weight", weight});
    out.push_back({name + ".bias", {weight[0]}});
  };
  add("patch", {d, 3 * c.patch * c.patch});
  out.push_back({"token", {d}});
  out.push_back({"positions", {c.length(), d}});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string block = "blocks_" + std::to_string(i) + ".";
    add(block + "norm1", {d}), add(block + "mixer.qkv", {3 * d, d});
    add(block + "mixer.out", {d, d}), add(block + "norm2", {d});
    add(block + "fc1", {c.mlp * d, d}), add(block + "fc2", {d, c.mlp * d});
  }
  add("norm", {d});
  if (c.classes > 0) add("head", {c.classes, d});
  return out;
}

// ---- Reading ---------------------------------------------------------------

class VitFile {
 public:
  explicit VitFile(const std::string& path)
      : path_(path), file_(io::SafeTensors::open(path)) {
    find_style();
    for (const io::TensorView& view : file_.tensors()) {
      if (ends(view.name, "dist_token") ||
          ends(view.name, "distillation_token"))
        throw io::Error(path + ": is a distilled model (tensor '" +
                        base::printable(view.name) +
                        "'); expected one without a distillation token, others "
                        "are not supported");
    }
  }

  models::ClassifierConfig config(int64_t heads) const {
    models::ClassifierConfig c;
    c.mixer = "attention", c.pool = "token", c.positions = true;
    if (file_.find(name("token")) && !file_.find(name("positions")))
      throw io::Error(path_ + ": has a class token, '" + name("token") +
                      "', without positions; expected '" + name("positions") +
                      "' too");
    const Shape patch = shape("patch.weight");
    check(patch.size() == 4 && patch[0] >= 1 && patch[1] == 3 &&
              patch[2] >= 1 && patch[2] == patch[3],
          "patch.weight", "[width, 3, patch, patch]", patch);
    c.width = patch[0], c.patch = patch[2];
    const std::string d = std::to_string(c.width);
    const Shape p = shape("positions");
    check(p.size() == 3 && p[0] == 1 && p[1] >= 2 && p[2] == c.width,
          "positions", "[1, 1 + patches, " + d + "]", p);
    c.rows = c.columns = std::llround(std::sqrt(static_cast<double>(p[1] - 1)));
    check(
        c.rows * c.columns == p[1] - 1, "positions",
        "[1, 1 + n n, " + d + "], a class token and a square of n x n patches",
        p);
    c.layers = count_blocks();
    const Shape fc1 = shape("blocks_0.fc1.weight");
    check(fc1.size() == 2 && fc1[0] >= 1 && fc1[1] == c.width &&
              fc1[0] % c.width == 0,
          "blocks_0.fc1.weight", "[a multiple of " + d + ", " + d + "]", fc1);
    c.mlp = fc1[0] / c.width;
    c.classes = 0;
    if (file_.find(name("head.weight")) || file_.find(name("head.bias"))) {
      const Shape head = shape("head.weight");
      check(head.size() == 2 && head[0] >= 1 && head[1] == c.width,
            "head.weight", "[classes, " + d + "]", head);
      c.classes = head[0];
    }
    c.mixer.set({{"heads", heads != 0          ? heads
                           : c.width % 64 == 0 ? c.width / 64
                                               : 0}});
    if (heads < 0 || (heads > 0 && c.width % heads != 0))
      throw io::Error(path_ + ": heads must divide the width, " + d + ", got " +
                      std::to_string(heads));
    return c;
  }

  /// Reads the tensor `ours` in float.
  torch::Tensor take(const Stored& ours, int64_t patch) {
    std::vector<torch::Tensor> parts;
    for (const Stored& s : stored_as(style_, ours.name, ours.shape, patch)) {
      const io::TensorView& view = file_.at(s.name);
      used_.insert(s.name);
      if (view.shape != s.shape) wrong(s.name, shape_text(s.shape), view.shape);
      parts.push_back(read_float(view));
    }
    return (parts.size() == 1 ? parts[0] : at::cat(parts)).reshape(ours.shape);
  }

  /// Throws if a tensor was not read, unless it is known to be unneeded.
  void check_all_taken() const {
    std::vector<std::string> left;
    for (const io::TensorView& view : file_.tensors()) {
      if (used_.count(view.name)) continue;
      if (style_.hf && begins(view.name, style_.prefix + "pooler.")) continue;
      left.push_back(view.name);
    }
    if (!left.empty())
      throw io::Error(path_ + ": has a tensor '" + base::printable(left[0]) +
                      "' that a plain ViT does not have (" +
                      base::counted(left.size(), "such tensor") + ")");
  }

 private:
  [[noreturn]] void wrong(const std::string& name, const std::string& expected,
                          const Shape& got) const {
    throw io::Error(path_ + ": tensor '" + name + "' must be " + expected +
                    ", got " + shape_text(got));
  }
  void check(bool good, const std::string& ours, const std::string& expected,
             const Shape& got) const {
    if (!good) wrong(name(ours), expected, got);
  }
  /// The name in the file of a tensor that is stored as one.
  std::string name(const std::string& ours) const {
    return stored_as(style_, ours, {0, 0}, 0)[0].name;
  }
  Shape shape(const std::string& ours) const {
    return file_.at(name(ours)).shape;
  }

  void find_style() {
    std::string looked_for;
    for (const VitStyle& style :
         {VitStyle{false, ""}, VitStyle{true, "vit."}, VitStyle{true, "deit."},
          VitStyle{true, ""}}) {
      style_ = style;
      for (const char* ours : {"patch.weight", "token", "positions"})
        if (file_.find(name(ours))) return;
      looked_for += (looked_for.empty() ? "'" : ", '") + name("patch.weight") +
                    (style.hf ? "' (Hugging Face)" : "' (timm)");
    }
    throw io::Error(
        path_ + ": has no tensors with the names of a known ViT; looked for " +
        looked_for + ", or their class tokens and positions; got " +
        base::counted(file_.tensors().size(), "tensor") +
        (file_.tensors().empty()
             ? ""
             : ", one is '" + base::printable(file_.tensors()[0].name) + "'") +
        (file_.find("patch.weight")
             ? "; to use a model trained by aft, pass its directory"
             : ""));
  }

  int64_t count_blocks() const {
    const std::string before = style_.blocks();
    std::set<int64_t> numbers;
    for (const io::TensorView& view : file_.tensors()) {
      if (!begins(view.name, before)) continue;
      const std::string digits = view.name.substr(
          before.size(), view.name.find('.', before.size()) - before.size());
      // check_all_taken() reports any other names.
      if (!digits.empty() && digits.size() <= 6 &&
          digits.find_first_not_of("0123456789") == std::string::npos)
        numbers.insert(std::stoll(digits));
    }
    int64_t next = 0;
    for (const int64_t n : numbers) {
      if (n != next)
        throw io::Error(path_ + ": has '" + before + std::to_string(n) +
                        ".' and no '" + before + std::to_string(next) +
                        ".'; expected blocks without gaps");
      ++next;
    }
    if (next == 0)
      throw io::Error(path_ + ": has no blocks; expected tensors '" + before +
                      "0.' and so on");
    return next;
  }

  torch::Tensor read_float(const io::TensorView& view) const {
    at::ScalarType type = at::kFloat;
    switch (view.dtype) {
      case io::DType::kF32:
        break;
      case io::DType::kF16:
        type = at::kHalf;
        break;
      case io::DType::kBF16:
        type = at::kBFloat16;
        break;
      case io::DType::kF64:
        type = at::kDouble;
        break;
      default:
        throw io::Error(path_ + ": tensor '" + view.name +
                        "' must be F32, F16, BF16 or F64, got " +
                        io::dtype_name(view.dtype));
    }
    torch::Tensor x = at::empty(view.shape, type);
    if (view.bytes > 0) std::memcpy(x.data_ptr(), view.data, view.bytes);
    x = x.to(at::kFloat);
    models::check_finite(path_, view.name, x);
    return x;
  }

  std::string path_;
  io::SafeTensors file_;
  VitStyle style_;
  std::set<std::string> used_;
};

ClassifierWeights read_directory(const std::string& path) {
  const Json config = load_config(path, "classification");
  if (config["model"].contains("network"))
    throw base::ConfigError(io::RunDirectory(path).config() +
                            ": expected a model made of blocks, got the "
                            "network " +
                            config["model"]["network"].get<std::string>());
  ClassifierWeights out;
  out.path = path;
  out.config = config_as<models::ClassifierConfig>(config.at("model"));
  models::Classifier model = within_memory(
      [&] { return models::Classifier(out.config); }, weights_of(path).file);
  load_weights(path, *model);
  for (const auto& [name, x] : models::tensors_of(*model))
    out.tensors[name] = x;
  return out;
}

// ---- Transfer between models ------------------------------------------------

torch::Tensor positions_for(const models::ClassifierConfig& from,
                            const models::ClassifierConfig& to,
                            const torch::Tensor& x) {
  const int64_t token = from.pool == "token" ? 1 : 0,
                new_token = to.pool == "token" ? 1 : 0;
  if (new_token > token) return {};
  const bool same = from.rows == to.rows && from.columns == to.columns;
  const torch::Tensor wide =
      same ? x
           : models::interpolate_positions(x, token, from.rows, from.columns,
                                           to.rows, to.columns);
  return wide.narrow(0, token - new_token, to.rows * to.columns + new_token);
}

/// The new value of tensor `name` of model `to`; undefined if it is unchanged.
torch::Tensor source_of(const ClassifierWeights& weights,
                        const models::ClassifierConfig& to,
                        const std::string& name) {
  const models::ClassifierConfig& from = weights.config;
  const torch::Tensor x =
      matching_tensor(weights.tensors, from.mixer, to.mixer, name);
  if (!x.defined()) return x;
  if (name == "positions") return positions_for(from, to, x);
  // Position biases are only meaningful on the same grid, unless they are
  // relative.
  const bool bias = ends(name, ".mixer.u") || ends(name, ".mixer.v") ||
                    ends(name, ".mixer.w");
  const bool same_grid = from.rows == to.rows && from.columns == to.columns &&
                         from.pool == to.pool;
  if (bias && !from.mixer.traits().relative_biases && !same_grid) return {};
  return x;
}

void check_same_body(const ClassifierWeights& weights,
                     const models::ClassifierConfig& to) {
  const models::ClassifierConfig& from = weights.config;
  std::string differences;
  const auto compare = [&](const char* key, int64_t a, int64_t b) {
    if (a != b)
      differences += (differences.empty() ? "model." : ", model.") +
                     std::string(key) + " " + std::to_string(a) + " (here " +
                     std::to_string(b) + ")";
  };
  compare("layers", from.layers, to.layers);
  compare("width", from.width, to.width);
  compare("mlp", from.mlp, to.mlp), compare("patch", from.patch, to.patch);
  const int64_t heads = from.mixer.get<int64_t>("heads");
  if (from.mixer.traits().attention && to.mixer.traits().attention && heads > 0)
    compare("heads", heads, to.mixer.get<int64_t>("heads"));
  if (!differences.empty())
    throw io::Error(weights.path +
                    ": its weights do not fit this model; expected the same "
                    "sizes, got " +
                    differences);
}

}  // namespace

ClassifierWeights read_vit(const std::string& path, int64_t heads) {
  VitFile file(path);
  ClassifierWeights out;
  out.path = path;
  out.config = file.config(heads);
  for (const Stored& ours : tensors_for(out.config))
    out.tensors[ours.name] = file.take(ours, out.config.patch);
  file.check_all_taken();
  return out;
}

Transfer transfer(const ClassifierWeights& from, models::ClassifierImpl& to,
                  const std::vector<int64_t>& rows) {
  check_same_body(from, to.config);
  at::NoGradGuard no_grad;
  Transfer out;
  for (const auto& [name, x] : models::tensors_of(to)) {
    const torch::Tensor source = source_of(from, to.config, name);
    copy_tensor(source, name, x,
                begins(name, "head.") ? rows : std::vector<int64_t>(), out);
  }
  return out;
}

Transfer initialise(models::ClassifierImpl& model, const std::string& path,
                    const std::vector<int64_t>& rows) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    return transfer(read_directory(path), model, rows);
  const nn::MixerConfig& mixer = model.config.mixer;
  const int64_t heads =
      mixer.traits().attention ? mixer.get<int64_t>("heads") : 0;
  return transfer(read_vit(path, heads), model);
}

models::NamedTensors export_names(const models::ClassifierImpl& model,
                                  const std::string& style) {
  const models::NamedTensors ours = models::tensors_of(model);
  if (style == "aft") return ours;
  if (style != "timm" && style != "hf")
    throw io::Error("names must be timm, hf or aft, got '" + style + "'");
  const models::ClassifierConfig& c = model.config;
  if (style == "hf" &&
      (!c.mixer.traits().attention || c.pool != "token" || !c.positions))
    throw io::Error(
        "the names hf (Hugging Face) are only for attention with a class token "
        "and positions, got " +
        c.mixer.name + ", pool " + c.pool +
        (c.positions ? "" : ", no positions") + "; use timm or aft instead");
  models::NamedTensors out;
  for (const auto& [name, x] : ours) {
    const std::vector<Stored> parts =
        stored_as({style == "hf", style == "hf" ? "vit." : ""}, name,
                  x.sizes().vec(), c.patch);
    int64_t row = 0;
    for (const Stored& s : parts) {
      const int64_t rows = x.size(0) / static_cast<int64_t>(parts.size());
      out.emplace_back(s.name, x.narrow(0, row, rows).reshape(s.shape));
      row += rows;
    }
  }
  return out;
}

}  // namespace aft::tasks
