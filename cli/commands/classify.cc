// `aft classify`: the most likely classes of images.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "aft/base/counted.h"
#include "aft/base/escape.h"
#include "aft/data/image_input.h"
#include "aft/tasks/classification.h"
#include "cli/commands.h"
#include "cli/image_grid.h"
#include "cli/model.h"

namespace aft::cli {
namespace {

struct Options {
  std::string model;
  std::vector<std::string> what;
  int64_t top = 5, size = 0, batch = 16;
  double crop = 0;
  bool json = false;
  int threads = 0;
};

/// The most likely classes of an image, as text or JSON.
base::Json most_likely(const at::Tensor& probabilities,
                       const std::vector<std::string>& names, int64_t top,
                       bool print) {
  const auto [shares, classes] = probabilities.topk(top);
  base::Json list = base::Json::array();
  for (int64_t k = 0; k < top; ++k) {
    const int64_t label = classes[k].item<int64_t>();
    const double share = shares[k].item<double>();
    const std::string name = static_cast<size_t>(label) < names.size()
                                 ? names[static_cast<size_t>(label)]
                                 : "class " + std::to_string(label);
    if (print)
      printf("  %6.2f %%  %s\n", 100 * share,
             base::terminal_safe(name).c_str());
    list.push_back({{"class", label}, {"label", name}, {"probability", share}});
  }
  return list;
}

void run(const Options& o) {
  const auto config = tasks::config_as<tasks::ClassificationConfig>(
      tasks::load_config(o.model, "classification"));
  const auto& data = config.data;
  check_size("classify", o.size, config.model);
  const int64_t height = o.size > 0 ? o.size : data.height,
                width = o.size > 0 ? o.size : data.width;
  const double crop = o.crop > 0 ? o.crop : data.crop;
  const std::vector<std::string> paths = image_files(o.what);
  report_weights(o.model);
  auto model = tasks::load_classifier(o.model, config.model);
  const int64_t all = static_cast<int64_t>(paths.size()),
                top = std::min(o.top, model->classes());
  std::mutex mutex;
  std::map<int64_t, std::string> errors;  // by image
  data::Loader loader(
      3 * height * width,
      [&](int64_t i, float* to) {
        try {
          const io::Image image = io::read_image(paths[static_cast<size_t>(i)]);
          data::evaluation_input(image, height, width, crop, to);
        } catch (const io::Error& e) {
          std::fill_n(to, 3 * height * width, 0.f);
          const std::lock_guard<std::mutex> lock(mutex);
          errors[i] = e.what();
        }
        return int64_t{0};
      },
      data.workers, all);
  at::NoGradGuard no_grad;
  // Results on a terminal show the progress themselves.
  const bool silent = !o.json && isatty(STDOUT_FILENO);
  std::optional<ProgressMeter> meter;
  base::Json json = base::Json::array();
  int64_t failed = 0;
  for (int64_t i = 0; i < all;) {
    const int64_t B = std::min(o.batch, all - i);
    const at::Tensor images =
        loader.get(i, B).values.view({B, 3, height, width});
    const at::Tensor probabilities = model->forward(images).softmax(-1);
    for (int64_t b = 0; b < B; ++b) {
      const std::string& file = paths[static_cast<size_t>(i + b)];
      const std::unique_lock<std::mutex> lock(mutex);
      if (const auto error = errors.find(i + b); error != errors.end()) {
        meter.reset();  // clears its line
        fflush(stdout);
        report_failure(error->second, 1);
        json.push_back({{"file", file}, {"error", error->second}});
        ++failed;
        continue;
      }
      if (!o.json) printf("%s\n", base::terminal_safe(file).c_str());
      json.push_back(
          {{"file", file},
           {"top", most_likely(probabilities[b], data.classes, top, !o.json)}});
    }
    i += B;
    if (!meter) meter.emplace("images");
    if (!silent) meter->show(i, all);
  }
  meter.reset();
  if (o.json)
    std::cout << json.dump(2, ' ', false, base::Json::error_handler_t::replace)
              << std::endl;
  if (failed > 0)
    throw io::Error(std::to_string(failed) + " of " +
                    base::counted(all, "image") + " could not be classified");
}

}  // namespace

void add_classify(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "classify", "Classify images with a trained classifier");
  add_model(*command, o->model);
  command
      ->add_option("images", o->what, "PNG or JPEG files, or folders of them")
      ->required();
  add_count(*command, "--top", o->top,
            "Print the N most likely classes; default: 5", 1, 1 << 30);
  add_view(*command, o->size, o->crop);
  add_batch(*command, o->batch, "Images");
  command->add_flag("--json", o->json, "Print a JSON array");
  add_threads(*command, o->threads);
  command->footer(
      "Models with aft-conv or attention accept any --size (position "
      "embeddings are interpolated). A file that cannot be\n"
      "read is reported (JSON: \"error\" instead of \"top\"), the others are "
      "classified, and the exit code is 1.\n"
      "\n"
      "Examples:\n"
      "  aft classify deit-tiny cat.jpg\n"
      "  aft classify flowers-model holiday/ --size 384 --json");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
