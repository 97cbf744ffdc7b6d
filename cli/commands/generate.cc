// `aft generate`: text from a model, byte by byte as it comes.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

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
  const bool going_on = !o.state.empty();
  if ((going_on || !o.save_state.empty()) && prompts.size() > 1)
    throw UsageError(
        "generate: --state and --save-state take one prompt, got " +
        std::to_string(prompts.size()));
  if (prompts.empty()) prompts.push_back("");
  std::vector<std::vector<int64_t>> symbols;
  int64_t unknown = 0;
  for (std::string& p : prompts) {
    if (p.empty() && !going_on) p = "\n";
    symbols.push_back(codec.encode(p, &unknown));
    if (symbols.back().empty() && !going_on) symbols.back().push_back(0);
  }
  if (unknown > 0)
    std::cerr << "note: " << unknown
              << " bytes of prompts left out, which the model has no symbol "
                 "for\n";
  size_t longest = 0;
  for (const auto& s : symbols) longest = std::max(longest, s.size());

  // A model may know more symbols than its text has.
  tasks::Sampling sampling = o.sampling;
  sampling.symbols = codec.vocabulary();
  const models::SequenceModel model = tasks::load_model(o.model, config.model);
  tasks::Generator generator =
      going_on ? tasks::Generator(model, sampling, o.state, symbols)
               : tasks::Generator(model, sampling, symbols);
  // The first stream is shown as it comes, the others after it.
  std::vector<std::string> texts = prompts;
  if (prompts.size() > 1) std::cout << "==== 1\n";
  if (prompts[0] != "\n") std::cout << prompts[0] << std::flush;
  std::vector<int64_t> left(prompts.size(), o.bytes);
  // A new stream was fed the first symbol of its prompt when it was made.
  for (int64_t t = going_on ? 0 : 1;
       t < static_cast<int64_t>(longest) + o.bytes; ++t) {
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
    if (!std::cout) return;  // whoever read has gone; main.cc says so
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
      "generate", "Write text with a model, byte by byte, in constant memory");
  command->add_option("model", o->model, "Directory of a model")->required();
  command
      ->add_option("--prompt", o->prompts,
                   "What to begin with; several prompts run together. Default: "
                   "a new line")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command->add_option("--bytes", o->bytes, "How many to write; default: 500")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  add_sampling(*command, o->sampling,
               "The same seed writes the same text; default: 1; with --state: "
               "no effect");
  command
      ->add_option("--save-state", o->save_state,
                   "At the end, write what it takes to go on to FILE")
      ->type_name("FILE");
  command
      ->add_option("--state", o->state,
                   "Go on from FILE as if it had never stopped; --prompt is "
                   "read first")
      ->type_name("FILE");
  add_threads(*command, o->threads);
  command->footer(
      "Models with positions (aft-full, aft-local, or position embeddings) "
      "that reach their length go on from its\n"
      "last half.\n"
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
