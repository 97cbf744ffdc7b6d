// `aft generate`: generates text and prints each byte when it is sampled.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <iostream>
#include <memory>
#include <string_view>

#include "aft/base/counted.h"
#include "aft/base/escape.h"
#include "aft/data/text_codec.h"
#include "aft/tasks/language.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model.h"

namespace aft::cli {
namespace {

constexpr size_t kPromptLimit = size_t{64} << 20;

struct Options {
  std::string model;
  std::vector<std::string> prompts, prompt_files;
  std::string state, save_state;
  int64_t bytes = 500;
  bool interactive = false, raw = false;
  tasks::Sampling sampling;
  int threads = 0;
};

/// Prints the model's text to stdout: unchanged or, on a terminal, with control
/// characters escaped.
class Printer {
 public:
  explicit Printer(bool raw) : raw_(raw || !isatty(STDOUT_FILENO)) {}
  void print(std::string_view text) {
    std::cout << (raw_ ? std::string(text) : text_.add(text)) << std::flush;
  }
  void end() { std::cout << text_.finish() << std::endl; }

 private:
  const bool raw_;
  base::TerminalText text_;
};

/// The texts of --prompt and --prompt-file. Throws UsageError, io::Error.
std::vector<std::string> prompts_of(const Options& o) {
  std::vector<std::string> out, files;
  for (const std::string& prompt : o.prompts) {
    if (prompt == "-")
      files.push_back(prompt);
    else
      out.push_back(prompt);
  }
  files.insert(files.end(), o.prompt_files.begin(), o.prompt_files.end());
  const auto inputs = std::count(files.begin(), files.end(), "-");
  if (inputs > (o.interactive ? 0 : 1))
    throw UsageError(
        o.interactive
            ? "generate: --interactive reads the standard input, so the prompt "
              "cannot be '-'"
            : "generate: the standard input is one prompt, but '-' is given " +
                  std::to_string(inputs) + " times");
  for (const std::string& file : files)
    out.push_back(file == "-" ? io::read_standard_input(kPromptLimit)
                              : io::read_input(file, kPromptLimit));
  const bool one = o.interactive || !o.state.empty() || !o.save_state.empty();
  if (one && out.size() > 1)
    throw UsageError(
        "generate: --interactive, --state and --save-state take one prompt, "
        "got " +
        std::to_string(out.size()));
  if (out.empty()) out.push_back("");
  return out;
}

/// The symbols of a text. Counts the bytes that have none.
class Encoder {
 public:
  explicit Encoder(const data::TextCodec& codec) : codec_(codec) {}
  std::vector<int64_t> operator()(const std::string& text) {
    return codec_.encode(text, &unknown_);
  }
  /// Reports the bytes counted since the last call.
  void report() {
    if (unknown_ > 0)
      std::cerr
          << "note: ignored " << base::counted(unknown_, "byte")
          << " of the prompts that the model's vocabulary does not have\n";
    unknown_ = 0;
  }

 private:
  const data::TextCodec& codec_;
  int64_t unknown_ = 0;
};

/// Reads the prompts and generates `bytes` bytes per stream. Prints the first
/// stream, after `start`, and appends the others to `texts`. Stops early if
/// more than `before` signals were caught or stdout is closed.
void generate(tasks::Generator& generator, const data::TextCodec& codec,
              int64_t bytes, const std::string& start, int before,
              Printer& printer, std::vector<std::string>& texts) {
  const int64_t prompt = generator.prompt_size(0);
  auto meter = std::make_unique<ProgressMeter>("bytes of the prompt");
  std::vector<int64_t> left(texts.size(), bytes);
  while (*std::max_element(left.begin(), left.end()) > 0 && std::cout &&
         interrupts() <= before) {
    if (const int64_t unread = generator.unread(0); unread > 0) {
      meter->show(prompt - unread, prompt);
    } else if (meter) {
      meter = nullptr;
      printer.print(start);
    }
    const std::vector<int64_t> drawn = generator.next();
    for (size_t i = 0; i < drawn.size(); ++i) {
      if (drawn[i] < 0 || left[i]-- <= 0) continue;
      const char c = static_cast<char>(codec.byte_of(drawn[i]));
      if (i == 0)
        printer.print({&c, 1});
      else
        texts[i] += c;
    }
  }
}

/// Lets the user and the model write in turn. Ctrl-C stops the model. Returns
/// false if another signal, or Ctrl-C at the user's turn, ends the
/// conversation; true at the end of the input.
bool converse(tasks::Generator& generator, const data::TextCodec& codec,
              const Options& o, Encoder& encode, Printer& printer,
              std::vector<std::string>& texts) {
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal)
    std::cerr << "The model continues what you type. After an empty line it "
                 "writes more. Ctrl-C stops it, Ctrl-D ends.\n";
  const auto write = [&](const std::string& start, int before) {
    generate(generator, codec, o.bytes, start, before, printer, texts);
    printer.end();
  };
  if (!texts[0].empty()) write(texts[0], 0);
  bool begun = !texts[0].empty() || !o.state.empty();
  for (std::string line;; begun = true) {
    if (!std::cout) return true;
    if (terminated() || generator.unread(0) > 0) return false;
    const int before = interrupts();
    if (terminal) std::cerr << "> " << std::flush;
    if (!read_line(line, before)) {
      if (terminal) std::cerr << '\n';
      return interrupts() == before;
    }
    if (!line.empty()) generator.prompt({encode((begun ? "\n" : "") + line)});
    encode.report();
    write("", before);
  }
}

void run(const Options& o) {
  if (!o.save_state.empty()) prepare_output("--save-state", o.save_state);
  const auto config = tasks::config_as<tasks::LanguageConfig>(
      tasks::load_config(o.model, "language"));
  const data::TextCodec codec(config.data.mode, config.data.symbols);
  const std::vector<std::string> prompts = prompts_of(o);
  const bool resume = !o.state.empty();
  Encoder encode(codec);
  std::vector<std::vector<int64_t>> symbols;
  for (const std::string& p : prompts) {
    symbols.push_back(encode(p.empty() && !resume ? "\n" : p));
    if (symbols.back().empty() && !resume) symbols.back().push_back(0);
  }
  encode.report();

  // The model's vocabulary may be larger than that of its text.
  tasks::Sampling sampling = o.sampling;
  sampling.symbols = codec.vocabulary();
  report_weights(o.model);
  const models::SequenceModel model =
      tasks::load_sequence_model(o.model, config.model);
  tasks::Generator generator =
      resume ? tasks::Generator(model, sampling, o.state, symbols)
             : tasks::Generator(model, sampling, symbols);
  Printer printer(o.raw);
  std::vector<std::string> texts = prompts;
  bool done;
  if (o.interactive) {
    catch_interrupts(INT_MAX);
    done = converse(generator, codec, o, encode, printer, texts);
  } else {
    if (!o.save_state.empty()) catch_interrupts();
    if (texts.size() > 1) std::cout << "==== 1\n";
    generate(generator, codec, o.bytes, prompts[0], 0, printer, texts);
    printer.end();
    for (size_t i = 1; i < texts.size(); ++i) {
      std::cout << "==== " << i + 1 << '\n';
      printer.print(texts[i]);
      printer.end();
    }
    done = interrupts() == 0;
  }
  if (!std::cout) return;  // stdout was closed; the program reports it
  if (!o.save_state.empty() && generator.unread(0) > 0) {
    std::cerr << "interrupted before the prompt was read; " << o.save_state
              << " is not written\n";
  } else if (!o.save_state.empty()) {
    generator.save(o.save_state);
    if (!done)
      std::cerr << "interrupted; continue with --state " << o.save_state
                << '\n';
  }
  if (!done) throw Interrupted();
}

}  // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "generate", "Generate text, byte by byte, in constant memory");
  add_model(*command, o->model);
  add_texts(*command, "--prompt", o->prompts, "TEXT",
            "Start of the text; several prompts are continued together; -: "
            "read it from the standard input; default: a newline");
  add_texts(*command, "--prompt-file", o->prompt_files, "FILE",
            "The same from a file");
  command->add_flag("-i,--interactive", o->interactive,
                    "Write in turn with the model: it continues each line that "
                    "you type");
  add_count(*command, "--bytes", o->bytes,
            "Bytes to generate, in each turn; default: 500");
  add_sampling(*command, o->sampling,
               "The same seed gives the same text; ignored with --state; "
               "default: 1");
  add_text(*command, "--save-state", o->save_state, "FILE",
           "Save the state at the end or after Ctrl-C, to continue from it "
           "with --state");
  add_text(*command, "--state", o->state, "FILE",
           "Continue from a saved state as if generation had not stopped; "
           "--prompt is read first");
  command->add_flag("--raw", o->raw,
                    "Print control characters to a terminal unchanged; "
                    "default: escaped, such as \\x1b");
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
      "  aft generate book --interactive --bytes 200\n"
      "  head -c 1000 book.txt | aft generate book --prompt -\n"
      "  aft generate book --prompt 'Chapter 1' --save-state one.state\n"
      "  aft generate book --state one.state --bytes 2000");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
