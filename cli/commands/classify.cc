// `aft classify`: the most likely classes of images.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>

#include "aft/base/escape.h"
#include "aft/data/image_files.h"
#include "aft/data/image_input.h"
#include "aft/tasks/classification.h"
#include "cli/commands.h"
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

/// The given files, and the image files in the given folders.
std::vector<std::string> files(const std::vector<std::string>& what) {
  std::vector<std::string> out;
  for (const std::string& path : what) {
    if (!is_directory(path)) {
      out.push_back(path);
      continue;
    }
    const std::vector<std::string> inside =
        data::list_images(path, /*hidden=*/false);
    if (inside.empty())
      throw data::DataError(path + ": expected PNG or JPEG files, got none");
    out.insert(out.end(), inside.begin(), inside.end());
  }
  return out;
}

void run(const Options& o) {
  const auto config = tasks::config_as<tasks::ClassificationConfig>(
      tasks::load_config(o.model, "classification"));
  const auto& data = config.data;
  check_size("classify", o.size, config.model);
  const int64_t height = o.size > 0 ? o.size : data.height,
                width = o.size > 0 ? o.size : data.width;
  const double crop = o.crop > 0 ? o.crop : data.crop;
  const std::vector<std::string> paths = files(o.what);
  auto model = tasks::load_classifier(o.model, config.model);
  const int64_t all = static_cast<int64_t>(paths.size()),
                top = std::min(o.top, model->classes());
  data::Loader loader(
      3 * height * width,
      [&](int64_t i, float* to) {
        const io::Image image = io::read_image(paths[static_cast<size_t>(i)]);
        data::evaluation_input(image, height, width, crop, to);
        return int64_t{0};
      },
      data.workers, all);
  at::NoGradGuard no_grad;
  ProgressMeter meter("images");
  base::Json json = base::Json::array();
  for (int64_t i = 0; i < all;) {
    const int64_t B = std::min(o.batch, all - i);
    const at::Tensor images =
        loader.get(i, B).values.view({B, 3, height, width});
    const auto [shares, classes] = model->forward(images).softmax(-1).topk(top);
    for (int64_t b = 0; b < B; ++b) {
      const std::string& file = paths[static_cast<size_t>(i + b)];
      if (!o.json) printf("%s\n", base::terminal_safe(file).c_str());
      base::Json list = base::Json::array();
      for (int64_t k = 0; k < top; ++k) {
        const int64_t label = classes[b][k].item<int64_t>();
        const double share = shares[b][k].item<double>();
        const std::string name =
            static_cast<size_t>(label) < data.classes.size()
                ? data.classes[static_cast<size_t>(label)]
                : "class " + std::to_string(label);
        if (!o.json)
          printf("  %6.2f %%  %s\n", 100 * share,
                 base::terminal_safe(name).c_str());
        list.push_back(
            {{"class", label}, {"label", name}, {"probability", share}});
      }
      if (o.json) json.push_back({{"file", file}, {"top", list}});
    }
    i += B;
    meter.show(i, all);
  }
  if (o.json)
    std::cout << json.dump(2, ' ', false, base::Json::error_handler_t::replace)
              << '\n';
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
      "embeddings are interpolated).\n"
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
