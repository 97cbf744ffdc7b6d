// `aft import` and `aft export`: exchange weights with other programs.
#include <c10/util/StringUtil.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "aft/base/counted.h"
#include "aft/data/data.h"
#include "aft/data/label_table.h"
#include "aft/io/run_directory.h"
#include "aft/models/weights.h"
#include "aft/tasks/vit_weights.h"
#include "cli/commands.h"
#include "cli/model.h"

namespace aft::cli {
namespace {

struct ImportOptions {
  std::string file, out, to = "attention", labels;
  int64_t heads = 0, kernel = 0, rank = 0;
  uint64_t seed = 1;
  std::vector<std::string> sets;
};

struct ExportOptions {
  std::string model, out, names;
};

// ---- Class names -----------------------------------------------------------

std::vector<std::string> class_names(const ImportOptions& o, int64_t classes) {
  std::vector<std::string> names;
  if (!o.labels.empty())
    names = data::read_label_table(o.labels, /*files=*/false).classes;
  const int64_t named = static_cast<int64_t>(names.size());
  if (classes > 0 && named > classes)
    throw data::DataError(o.labels + ": expected at most the " +
                          base::counted(classes, "class") +
                          " of the weights, got " + std::to_string(named));
  if (classes > 0) names.resize(static_cast<size_t>(classes));
  if (names.empty())
    throw UsageError("import: " + o.file +
                     " has no classification head; name the classes of a new "
                     "one with --labels FILE");
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i].empty()) names[i] = "class " + std::to_string(i);
  return names;
}

// ---- Import ----------------------------------------------------------------

/// Throws UsageError for options that the mixer does not have.
void check_options(const ImportOptions& o) {
  const auto& kinds = nn::mixer_kinds(/*causal=*/false);
  if (std::find(kinds.begin(), kinds.end(), o.to) == kinds.end())
    throw UsageError("import: --to must be one of " + c10::Join(", ", kinds) +
                     ", got '" + o.to + "'");
  const auto check = [&](const char* option, int64_t value, const char* key) {
    if (value == 0 || nn::mixer_traits(o.to).has(key)) return;
    std::vector<std::string> mixers;
    for (const std::string& kind : kinds)
      if (nn::mixer_traits(kind).has(key)) mixers.push_back(kind);
    throw UsageError(std::string("import: ") + option + " is for --to " +
                     c10::Join(", ", mixers) + ", got " + o.to);
  };
  check("--heads", o.heads, "heads");
  check("--kernel", o.kernel, "window");
  check("--rank", o.rank, "rank");
}

int64_t choose_heads(const ImportOptions& o,
                     const models::ClassifierConfig& from) {
  if (o.heads > 0) return o.heads;
  const int64_t own = nn::mixer_traits(o.to).imported_heads,
                theirs = from.mixer.get<int64_t>("heads");
  if (own > 0 && from.width % own == 0) return own;
  if (theirs > 0) return theirs;
  throw UsageError("import: " + o.file +
                   " does not record the number of heads, and its width, " +
                   std::to_string(from.width) +
                   ", is not a multiple of 64; pass --heads N");
}

base::Json make_config(const ImportOptions& o,
                       const models::ClassifierConfig& from) {
  base::Json model{{"mixer", o.to},
                   {"layers", from.layers},
                   {"width", from.width},
                   {"mlp", from.mlp},
                   {"patch", from.patch}};
  if (nn::mixer_traits(o.to).has("heads"))
    model["heads"] = choose_heads(o, from);
  if (o.kernel > 0) model["window"] = o.kernel;
  if (o.rank > 0) model["rank"] = o.rank;
  const base::Json data{{"height", from.rows * from.patch},
                        {"width", from.columns * from.patch},
                        {"classes", class_names(o, from.classes)}};
  const base::Json config{
      {"task", "classification"}, {"model", model}, {"data", data}};
  return apply_sets(config, o.sets);
}

/// The new model directory. Unless write() succeeds, the destructor removes
/// what was created.
class Output {
 public:
  explicit Output(std::string path) : directory_(std::move(path)) {
    created_ = directory_.create();
    std::string file = directory_.proof();
    if (file.empty() && exists(directory_.state())) file = directory_.state();
    if (!file.empty())
      throw io::RunExists(file + ": already exists; choose another --out");
  }
  ~Output() {
    if (kept_) return;
    unlink(directory_.config().c_str());
    unlink(directory_.weights().c_str());
    if (created_) rmdir(directory_.path().c_str());
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// The configuration comes last: without it, a directory is not a model.
  void write(const models::NamedTensors& tensors, const std::string& config) {
    models::save_tensors(directory_.weights(), tensors);
    directory_.write_config(config);
    kept_ = true;
  }

 private:
  io::RunDirectory directory_;
  bool created_ = false, kept_ = false;
};

void import_weights(const ImportOptions& o) {
  check_options(o);
  const tasks::ClassifierWeights weights =
      tasks::read_vit(o.file, nn::mixer_traits(o.to).attention ? o.heads : 0);
  const base::Json config = make_config(o, weights.config);
  torch::manual_seed(o.seed);
  models::Classifier model(
      tasks::config_as<models::ClassifierConfig>(config.at("model")));
  const tasks::Transfer taken = tasks::transfer(weights, *model);
  std::string json;
  try {
    json = config.dump(2) + "\n";
  } catch (const base::Json::exception&) {
    throw base::ConfigError((o.labels.empty() ? "--set" : o.labels) +
                            ": must be UTF-8");
  }
  Output(o.out).write(models::tensors_of(*model), json);

  int64_t parameters = 0;
  for (const auto& p : model->parameters()) parameters += p.numel();
  const models::ClassifierConfig& c = model->config;
  std::cout << o.out << ": " << c.mixer.name << ", "
            << base::counted(c.layers, "layer") << " of " << c.width << ", "
            << parameters << " parameters, " << c.rows * c.patch << "x"
            << c.columns * c.patch << " pixels, "
            << base::counted(c.classes, "class") << "\n"
            << "  from " << o.file << ": " << tasks::summary(taken.copied)
            << "\n";
  if (o.labels.empty())
    std::cout << "  the classes have no names, only indices: --labels FILE "
                 "names them\n";
  if (taken.fresh.empty()) {
    std::cout
        << "next: `aft classify " << o.out
        << " photo.jpg` classifies an image, `aft eval " << o.out
        << " --data PATH` measures the accuracy, `aft train PRESET --init "
        << o.out << "` trains it further\n";
  } else {
    std::cout << "  newly initialised: " << tasks::summary(taken.fresh) << "\n"
              << "next: `aft train PRESET --init " << o.out
              << "` trains it; until then, its predictions are poor\n";
  }
}

// ---- Export ----------------------------------------------------------------

void export_weights(const ExportOptions& o) {
  const base::Json config = tasks::load_config(o.model);
  const std::string task = config["task"].get<std::string>();
  const bool classifier = task == "classification" && !has_network(config);
  const std::string names = !o.names.empty() ? o.names
                            : classifier     ? "timm"
                                             : "aft";
  if (!classifier && names != "aft")
    throw UsageError(
        "export: --names " + names +
        " is for classifiers made of blocks, got " +
        (has_network(config)
             ? "the network " + config["model"]["network"].get<std::string>()
             : "a model of task " + task) +
        ", which supports only --names aft");
  report_weights(o.model);
  prepare_output("--out", o.out);
  const std::shared_ptr<torch::nn::Module> model =
      tasks::make_model(config, o.model);
  const models::NamedTensors ours = models::tensors_of(*model);
  tasks::load_weights(o.model, *model);
  const models::NamedTensors tensors =
      classifier
          ? tasks::export_names(*model->as<models::ClassifierImpl>(), names)
          : ours;
  models::save_tensors(o.out, tensors, {{"format", "pt"}});
  int64_t values = 0;
  for (const auto& [name, x] : tensors) values += x.numel();
  std::cout << o.out << ": " << base::counted(tensors.size(), "tensor")
            << " with the names of " << (names == "hf" ? "Hugging Face" : names)
            << ", " << values
            << " values; in Python: safetensors.torch.load_file('" << o.out
            << "')\n";
}

}  // namespace

void add_import(CLI::App& app) {
  auto o = std::make_shared<ImportOptions>();
  CLI::App* command = app.add_subcommand(
      "import", "Create a model from the weights of a ViT or DeiT");
  command
      ->add_option("file", o->file,
                   "Weights (safetensors) with timm's or Hugging Face's names")
      ->required();
  add_text(*command, "--out", o->out, "DIR", "Model directory")->required();
  add_text(*command, "--to", o->to, "MIXER",
           "Replace attention by another mixer: aft-conv, aft-full, aft-local "
           "or aft-simple; its queries, keys and biases are newly initialised; "
           "default: attention");
  add_count(*command, "--heads", o->heads,
            "Heads; default: width / 64 for attention, 32 for aft-conv if that "
            "divides the width",
            1, 1 << 20);
  add_count(*command, "--kernel", o->kernel,
            "Side of the kernel of aft-conv, window of aft-local; default: 11",
            1, 1 << 20);
  add_count(*command, "--rank", o->rank,
            "Rank of the factorised biases of aft-full and aft-local; default: "
            "128",
            1, 1 << 20);
  add_text(*command, "--labels", o->labels, "FILE",
           "Class names: a tab-separated table whose first line names the "
           "columns class_index, wnid and name");
  add_sets(*command, o->sets);
  add_seed(*command, o->seed, "Seed of newly initialised weights; default: 1");
  command->footer(
      "A weights file does not record the normalisation of images or the "
      "epsilon of norms: DeiT's are used (ImageNet's\n"
      "mean and standard deviation, 1e-6). For an image size other than that "
      "of training: --set data.height=384\n"
      "--set data.width=384.\n"
      "\n"
      "Examples:\n"
      "  aft import deit_tiny_patch16_224.safetensors --out deit --labels "
      "labels.tsv\n"
      "  aft import deit_tiny_patch16_224.safetensors --out conv --to aft-conv "
      "--kernel 11 --heads 32\n"
      "  aft classify deit photo.jpg");
  command->callback([o] { import_weights(*o); });
}

void add_export(CLI::App& app) {
  auto o = std::make_shared<ExportOptions>();
  CLI::App* command = app.add_subcommand(
      "export", "Write the weights of a model for use by other programs");
  add_model(*command, o->model);
  add_text(*command, "--out", o->out, "FILE", "Safetensors file")->required();
  add_text(*command, "--names", o->names, "NAMES",
           "Names of the tensors: timm, hf (Hugging Face; attention only) or "
           "aft (as stored); default: timm for classifiers, otherwise aft")
      ->check(one_of({"timm", "hf", "aft"}));
  command->footer(
      "Examples:\n"
      "  aft export deit --out vit.safetensors --names hf\n"
      "  aft export runs/text-aft-local-4x128 --out weights.safetensors");
  command->callback([o] { export_weights(*o); });
}

}  // namespace aft::cli
