// `aft import` and `aft export`: weights from other programs and for them.
#include <c10/util/StringUtil.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "aft/data/data.h"
#include "aft/data/label_table.h"
#include "aft/io/file.h"
#include "aft/io/safetensors.h"
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

// ---- Names of classes ------------------------------------------------------

std::vector<std::string> class_names(const ImportOptions& o, int64_t classes) {
  std::vector<std::string> names;
  if (!o.labels.empty())
    names = data::read_label_table(o.labels, /*files=*/false).classes;
  const int64_t named = static_cast<int64_t>(names.size());
  if (classes > 0 && named > classes)
    throw data::DataError(
        o.labels + ": expected at most the " + std::to_string(classes) +
        " classes of the weights, got " + std::to_string(named));
  if (classes > 0) names.resize(static_cast<size_t>(classes));
  if (names.empty())
    throw UsageError("import: " + o.file +
                     " has no head; --labels FILE names the classes of a new "
                     "one");
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i].empty()) names[i] = "class " + std::to_string(i);
  return names;
}

// ---- Import ----------------------------------------------------------------

/// Options that the mixer does not have are a wrong call.
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
                   " does not say how many heads it has, and its width, " +
                   std::to_string(from.width) +
                   ", is no multiple of 64; --heads N says it");
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

/// A directory for a model: a new one, or one without a model. What was made in
/// it goes away again unless it is kept.
class Output {
 public:
  explicit Output(std::string path) : path_(std::move(path)) {
    made_ = io::make_directory(path_);
    if (!is_directory(path_))
      throw std::runtime_error(path_ + ": is there, and not a directory");
    for (const char* name :
         {"config.json", "model.safetensors", "state", "metrics.jsonl"}) {
      if (exists(path_ + "/" + name))
        throw std::runtime_error(path_ + ": holds a model already (" + name +
                                 "); choose another --out");
    }
  }
  ~Output() {
    if (kept_) return;
    for (const char* name : {"/config.json", "/model.safetensors"})
      unlink((path_ + name).c_str());
    if (made_) rmdir(path_.c_str());
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// The configuration comes last: without it, a directory is no model.
  void write(const train::NamedTensors& tensors, const std::string& config) {
    train::save_tensors(path_ + "/model.safetensors", tensors);
    io::write_file(path_ + "/config.json", config);
    kept_ = true;
  }

 private:
  std::string path_;
  bool made_ = false, kept_ = false;
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
                            ": must be UTF-8, as config.json is");
  }
  Output(o.out).write(train::tensors_of(*model), json);

  int64_t parameters = 0;
  for (const auto& p : model->parameters()) parameters += p.numel();
  const models::ClassifierConfig& c = model->config;
  std::cout << o.out << ": " << c.mixer.name << ", " << c.layers
            << " layers of " << c.width << ", " << parameters << " parameters, "
            << c.rows * c.patch << "x" << c.columns * c.patch << " pixels, "
            << c.classes << " classes\n"
            << "  from " << o.file << ": " << tasks::summary(taken.copied)
            << "\n";
  if (taken.fresh.empty()) {
    std::cout
        << "next: `aft classify " << o.out
        << " picture.jpg` names what is on a picture, `aft eval " << o.out
        << " --data PATH` counts how often it is right, `aft train PRESET "
           "--init "
        << o.out << "` trains on\n";
  } else {
    std::cout << "  begin afresh: " << tasks::summary(taken.fresh) << "\n"
              << "next: `aft train PRESET --init " << o.out
              << "` trains it; before that, `aft classify " << o.out
              << " picture.jpg` and `aft eval " << o.out
              << " --data PATH` know little\n";
  }
}

// ---- Export ----------------------------------------------------------------

void export_weights(const ExportOptions& o) {
  const base::Json config = tasks::load_config(o.model);
  const std::string from = o.model + "/model.safetensors",
                    task = config["task"].get<std::string>();
  const bool classifier = task == "classification" && !has_network(config);
  const std::string names = !o.names.empty() ? o.names
                            : classifier     ? "timm"
                                             : "aft";
  if (!classifier && names != "aft")
    throw UsageError(
        "export: --names " + names +
        " is for models of classification made of blocks, got " +
        (has_network(config)
             ? "the network " + config["model"]["network"].get<std::string>()
             : "one of " + task) +
        ", which has the names aft only");
  std::error_code none;
  if (std::filesystem::equivalent(from, o.out, none))
    throw UsageError("export: --out must be another file than the model's own");
  const std::shared_ptr<torch::nn::Module> model =
      tasks::make_model(config, o.model);
  const train::NamedTensors ours = train::tensors_of(*model);
  tasks::load_weights(o.model, *model);
  const train::NamedTensors tensors =
      classifier
          ? tasks::export_names(*model->as<models::ClassifierImpl>(), names)
          : ours;
  train::save_tensors(o.out, tensors, {{"format", "pt"}});
  int64_t numbers = 0;
  for (const auto& [name, x] : tensors) numbers += x.numel();
  std::cout << o.out << ": " << tensors.size() << " tensors with the names of "
            << (names == "hf" ? "Hugging Face" : names) << ", " << numbers
            << " numbers; in Python: safetensors.torch.load_file('" << o.out
            << "')\n";
}

CLI::Option* add_count(CLI::App& command, const char* option, int64_t& value,
                       const std::string& about) {
  return command.add_option(option, value, about)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
}

}  // namespace

void add_import(CLI::App& app) {
  auto o = std::make_shared<ImportOptions>();
  CLI::App* command = app.add_subcommand(
      "import", "Make a model of the weights of a ViT or DeiT");
  command
      ->add_option("file", o->file,
                   "Weights (safetensors) with the names of timm or of Hugging "
                   "Face")
      ->required();
  command->add_option("--out", o->out, "Directory of the model")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--to", o->to,
                   "Put another mixer where attention stood: aft-conv, "
                   "aft-full, aft-local or aft-simple; its queries, keys and "
                   "biases begin afresh; default: attention")
      ->type_name("MIXER");
  add_count(*command, "--heads", o->heads,
            "Heads; default: attention has width / 64, aft-conv 32 where that "
            "divides the width");
  add_count(*command, "--kernel", o->kernel,
            "Side of aft-conv's kernel, window of aft-local; default: 11");
  add_count(*command, "--rank", o->rank,
            "aft-full, aft-local: of the factorised biases; default: 128");
  command
      ->add_option("--labels", o->labels,
                   "Names of the classes: a table with tabs, whose first line "
                   "names the columns class_index, wnid and name")
      ->type_name("FILE");
  add_sets(*command, o->sets);
  command->add_option("--seed", o->seed, "Of what begins afresh; default: 1")
      ->type_name("N");
  command->footer(
      "Not in a file of weights, and as DeiT has it here: the pictures' "
      "normalisation (ImageNet's mean and deviation)\n"
      "and the norms' epsilon (1e-6). Another size than that of training: "
      "--set data.height=384 --set data.width=384.\n"
      "\n"
      "Examples:\n"
      "  aft import deit_tiny_patch16_224.safetensors --out deit --labels "
      "labels.tsv\n"
      "  aft import deit_tiny_patch16_224.safetensors --out conv --to aft-conv "
      "--kernel 11 --heads 32\n"
      "  aft classify deit picture.jpg");
  command->callback([o] { import_weights(*o); });
}

void add_export(CLI::App& app) {
  auto o = std::make_shared<ExportOptions>();
  CLI::App* command = app.add_subcommand(
      "export", "Write the weights of a model for other programs");
  command->add_option("model", o->model, "Directory of a model")->required();
  command->add_option("--out", o->out, "The file (safetensors)")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--names", o->names,
                   "timm, hf (Hugging Face; attention only) or aft (as they "
                   "are); default: timm, and aft for texts and generated "
                   "pictures")
      ->check(CLI::IsMember({"timm", "hf", "aft"}).description(""))
      ->type_name("NAMES");
  command->footer(
      "Examples:\n"
      "  aft export deit --out vit.safetensors --names hf\n"
      "  aft export runs/text-aft-local-4x128 --out weights.safetensors");
  command->callback([o] { export_weights(*o); });
}

}  // namespace aft::cli
