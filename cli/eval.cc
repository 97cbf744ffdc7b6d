// `aft eval`: bits per character of a model on a split of a text.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/language.h"

namespace aft::cli {
namespace {

struct Options {
  std::string model, data, split = "test";
  int64_t stride = 0, batch = 8, bytes = 0;
  bool json = false;
  int threads = 0;
};

void run(const Options& o) {
  tasks::LanguageConfig config = tasks::load_config(o.model);
  if (!o.data.empty()) config.data.path = o.data;
  const tasks::Text text = tasks::Text::open(config.data.path, config.data.mode,
                                             config.data.symbols);
  if (o.data.empty() && !config.data.fingerprint.empty() &&
      text.fingerprint() != config.data.fingerprint) {
    std::cerr << "note: the text has changed since the model was trained: its "
                 "parts may overlap with what was trained on\n";
  }
  tasks::Bytes part = text.split(o.split);
  if (o.bytes > 0 && o.bytes < part.size) part.size = o.bytes;
  const int64_t T = config.model.length, stride = o.stride > 0 ? o.stride : T;
  if (stride > T)
    throw UsageError("eval: --stride must be at most model.length = " +
                     std::to_string(T) + ", got " + std::to_string(stride));
  const auto model = tasks::load_model(o.model, config);
  const bool terminal = isatty(STDERR_FILENO);
  const double nats = tasks::evaluate(
      model, part, T, stride, o.batch, [&](int64_t done, int64_t all) {
        if (terminal)
          std::cerr << "\r" << 100 * done / all << " %\033[K" << std::flush;
      });
  if (terminal) std::cerr << "\r\033[K";
  if (o.json) {
    std::cout
        << models::Json{{"model", o.model},     {"split", o.split},
                        {"symbols", part.size}, {"length", T},
                        {"stride", stride},     {"mode", config.data.mode},
                        {"nats", nats},         {"bpc", nats * kBits}}
               .dump(2)
        << '\n';
    return;
  }
  printf("%s: bpc %.4f on %s, %lld symbols (%s), windows of %lld, %lld apart\n",
         o.model.c_str(), nats * kBits, o.split.c_str(),
         static_cast<long long>(part.size), config.data.mode.c_str(),
         static_cast<long long>(T), static_cast<long long>(stride));
}

}  // namespace

void add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("eval", "Bits per character of a model on a text");
  command->add_option("model", o->model, "Directory of a model")->required();
  command
      ->add_option("--data", o->data,
                   "Text, any file; default: what it was trained on")
      ->type_name("FILE");
  command->add_option("--split", o->split, "train, valid or test (default)")
      ->type_name("NAME");
  command
      ->add_option("--stride", o->stride,
                   "Bytes from one window to the next; default: the model's "
                   "length, no overlap. Smaller: more context, more work")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command->add_option("--bytes", o->bytes, "Only the first N of the split")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command->add_option("--batch", o->batch, "Windows at once; default: 8")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
  command->add_flag("--json", o->json, "A JSON object instead of a line");
  add_threads(*command, o->threads);
  command->footer(
      "Examples:\n"
      "  aft eval runs/text-aft-local-4x128\n"
      "  aft eval book --split valid --stride 64 --json");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
