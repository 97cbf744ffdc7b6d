// `aft generate`: generates text and prints each byte when it is sampled.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "aft/base/counted.h"
#include "aft/data/text_codec.h"
#include "aft/tasks/language.h"
#include "cli/commands.h"
#include "cli/model.h"

namespace aft::cli {
namespace {

struct Options {
  std::string model;
  std::vector<std::string> prompts;
  std::string state, save_state;
  int64_t bytes = 500;
  tasks::Sampling sampling;
  int threads = 0;
};

void run(const Options& o) {
  const auto config = tasks::config_as<tasks::LanguageConfig>(
      tasks::load_config(o.model, "language"));
  const data::TextCodec codec(config.data.mode, config.data.symbols);
  std::vector<std::string> prompts = o.prompts;
  const bool resume = !o.state.empty();
  if ((resume || !o.save_state.empty()) && prompts.size() > 1)
    throw UsageError(
        "generate: --state and --save-state take one prompt, got " +
        std::to_string(prompts.size()));
  if (prompts.empty()) prompts.push_back("");
  std::vector<std::vector<int64_t>> symbols;
  int64_t unknown = 0;
  for (std::string& p : prompts) {
    if (p.empty() && !resume) p = "\n";
    symbols.push_back(codec.encode(p, &unknown));
    if (symbols.back().empty() && !resume) symbols.back().push_back(0);
  }
  if (unknown > 0)
    std::cerr << "note: ignored " << base::counted(unknown, "byte")
              << " of the prompts that the model's vocabulary does not have\n";
  size_t longest = 0;
  for (const auto& s : symbols) longest = std::max(longest, s.size());

  // The model's vocabulary may be larger than that of its text.
  tasks::Sampling sampling = o.sampling;
  sampling.symbols = codec.vocabulary();
  const models::SequenceModel model =
      tasks::load_sequence_model(o.model, config.model);
  tasks::Generator generator =
      resume ? tasks::Generator(model, sampling, o.state, symbols)
             : tasks::Generator(model, sampling, symbols);
  // The first stream is printed while it is generated, the others at the end.
  std::vector<std::string> texts = prompts;
  if (prompts.size() > 1) std::cout << "==== 1\n";
  if (prompts[0] != "\n") std::cout << prompts[0] << std::flush;
  std::vector<int64_t> left(prompts.size(), o.bytes);
  // A new stream was given the first symbol of its prompt when it was created.
  for (int64_t t = resume ? 0 : 1; t < static_cast<int64_t>(longest) + o.bytes;
       ++t) {
    const std::vector<int64_t> drawn = generator.next();
    for (size_t i = 0; i < drawn.size(); ++i) {
      if (drawn[i] < 0 || left[i]-- <= 0) continue;
      const char c = static_cast<char>(codec.byte_of(drawn[i]));
      if (i == 0) {
        std::cout << c << std::flush;
      } else {
        texts[i] += c;
      }
    }
    if (!std::cout) return;  // stdout was closed; the program reports it
  }
  std::cout << '\n';
  for (size_t i = 1; i < texts.size(); ++i)
    std::cout << "==== " << i + 1 << "\n" << texts[i] << '\n';
  if (!o.save_state.empty()) generator.save(o.save_state);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "generate", "Generate text, byte by byte, in constant memory");
  add_model(*command, o->model);
  command
      ->add_option("--prompt", o->prompts,
                   "Start of the text; several prompts are continued together; "
                   "default: a newline")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  add_count(*command, "--bytes", o->bytes, "Bytes to generate; default: 500");
  add_sampling(*command, o->sampling,
               "The same seed gives the same text; ignored with --state; "
               "default: 1");
  add_text(*command, "--save-state", o->save_state, "FILE",
           "Save the state at the end, to continue from it with --state");
  add_text(*command, "--state", o->state, "FILE",
           "Continue from a saved state as if generation had not stopped; "
           "--prompt is read first");
  add_threads(*command, o->threads);
  command->footer(
      "Models with a maximum length (aft-full, aft-local, or position "
      "embeddings) restart from their last half when they\n"
      "reach it.\n"
      "\n"
      "Examples:\n"
      "  aft generate runs/text-aft-local-4x128\n"
      "  aft generate book --prompt 'Once upon' --temperature 0.8 --bytes "
      "2000\n"
      "  aft generate book --prompt 'A' --prompt 'The second' --top-k 40\n"
      "  aft generate book --prompt 'Chapter 1' --save-state one.state\n"
      "  aft generate book --state one.state --bytes 2000");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
