// `aft train`: a preset or a configuration to a model directory.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>

#include "aft/io/file.h"
#include "aft/tasks/language.h"
#include "cli/commands.h"
#include "cli/curve.h"
#include "cli/language.h"

namespace aft::cli {
namespace {

volatile sig_atomic_t stop_asked = 0;

/// Ctrl-C and a polite kill end the run after the current step, with a
/// checkpoint; the second one ends it at once.
void on_signal(int signal) {
  stop_asked = 1;
  ::signal(signal, SIG_DFL);
}

struct Options {
  std::string what, out, resume, data;
  std::vector<std::string> sets;
  int64_t steps = 0;
  int threads = 0;
};

/// A new directory for a run; one that holds a run, or what is left of one, is
/// refused.
void make_output(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return;
  if (errno != EEXIST)
    throw std::runtime_error(path +
                             ": cannot be made: " + std::strerror(errno));
  if (!is_directory(path))
    throw std::runtime_error(path + ": is there, and not a directory");
  for (const char* name :
       {"config.json", "model.safetensors", "state", "metrics.jsonl"}) {
    if (exists(path + "/" + name))
      throw std::runtime_error(path + ": holds a run already (" + name +
                               "); go on with it by `aft train --resume " +
                               path + "`, or choose another --out");
  }
  if (access(path.c_str(), W_OK) != 0)
    throw std::runtime_error(path +
                             ": cannot be written to: " + std::strerror(errno));
}

/// What may not change in a run that goes on: the model (dropout aside), and
/// what its symbols mean.
void check_same(const tasks::LanguageConfig& stored,
                const tasks::LanguageConfig& now) {
  const auto check = [](const std::string& key, const models::Json& before,
                        const models::Json& after) {
    if (before != after)
      throw models::ConfigError(key + " is " + before.dump() +
                                " in this run, and cannot become " +
                                after.dump() + "; that takes a new run");
  };
  const models::Json before = models::to_json(stored.model),
                     after = models::to_json(now.model);
  for (const auto& item : before.items()) {
    if (item.key() != "dropout")
      check("model." + item.key(), item.value(), after.at(item.key()));
  }
  check("data.mode", stored.data.mode, now.data.mode);
  check("data.symbols", stored.data.symbols, now.data.symbols);
}

std::string absolute(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  const std::string out = real ? real : path;
  free(real);
  return out;
}

/// The text of a run, which config then describes. A run that goes on needs the
/// one that it began with, or to be told otherwise.
tasks::Text open_text(const Options& o, tasks::LanguageConfig& config) {
  tasks::Text text = tasks::Text::open(config.data.path, config.data.mode,
                                       config.data.symbols);
  const std::string found = text.fingerprint();
  if (o.data.empty() && !config.data.fingerprint.empty() &&
      config.data.fingerprint != found) {
    throw tasks::DataError(
        (config.data.path.empty() ? "the built-in text" : config.data.path) +
        ": is not the text that the run began with: expected "
        "data.fingerprint " +
        config.data.fingerprint + ", got " + found +
        "; `--data FILE` gives the right one, `--set data.fingerprint=` goes "
        "on anyway");
  }
  if (!config.data.path.empty()) config.data.path = absolute(config.data.path);
  config.data.symbols = text.symbols();
  config.data.fingerprint = found;
  return text;
}

class Line {
 public:
  void show(const train::Report& r, bool reported) {
    char text[256];
    const int n = snprintf(
        text, sizeof(text),
        "step %lld/%lld  loss %.4f  bpc %.4f  %s tokens/s  %s left  %.2f GB",
        static_cast<long long>(r.step), static_cast<long long>(r.steps), r.loss,
        r.loss * kBits, count(r.tokens_per_second).c_str(),
        duration(r.seconds_left).c_str(), resident() / 1e9);
    std::string line(text, static_cast<size_t>(n));
    if (r.validated) {
      snprintf(text, sizeof(text), "  validation bpc %.4f (best %.4f)",
               r.validation * kBits, r.best * kBits);
      line += text;
    }
    if (terminal_) {
      std::cerr << '\r' << line << "\033[K" << (r.validated ? "\n" : "")
                << std::flush;
      open_ = !r.validated;
    } else if (reported) {
      std::cerr << line << std::endl;
    }
  }
  void close() {
    if (open_) std::cerr << '\n';
    open_ = false;
  }
  ~Line() { close(); }

 private:
  const bool terminal_ = isatty(STDERR_FILENO);
  bool open_ = false;
};

void run(const Options& o) {
  const bool resume = !o.resume.empty();
  if (resume == !o.what.empty())
    throw UsageError("train: expected a preset or --resume DIR, " +
                     std::string(resume ? "got both" : "got neither"));
  if (resume && !o.out.empty())
    throw UsageError(
        "train: --resume goes on in its own directory, without "
        "--out");
  const std::string name = o.what.substr(o.what.find_last_of('/') + 1);
  const std::string directory = resume          ? o.resume
                                : o.out.empty() ? "runs/" + name
                                                : o.out;
  tasks::LanguageConfig config =
      resume ? tasks::load_config(o.resume) : preset_config(o.what);
  const tasks::LanguageConfig stored = config;
  apply_sets(config, o.sets);
  if (resume) check_same(stored, config);
  if (!o.data.empty()) config.data.path = o.data;
  if (o.steps > 0) config.train.steps = o.steps;

  tasks::LanguageTask task(config, open_text(o, config));
  train::Trainer trainer(task, config.train, directory);
  std::string json;
  try {
    json = models::to_json(config).dump(2) + "\n";
  } catch (const models::Json::exception&) {
    throw models::ConfigError("data.path must be UTF-8, as config.json is");
  }
  if (!resume) {
    if (o.out.empty()) mkdir("runs", 0777);
    make_output(directory);
  } else if (trainer.has_checkpoint()) {
    trainer.resume();
    if (trainer.step() >= config.train.steps) {
      std::cout << directory << ": has " << trainer.step()
                << " steps already; `--steps N` with more goes on\n";
      return;
    }
    std::cerr << directory << ": going on from step " << trainer.step() << '\n';
  } else if (exists(directory + "/model.safetensors") ||
             exists(directory + "/metrics.jsonl")) {
    throw std::runtime_error(directory +
                             "/state/checkpoint.safetensors: is not there, and "
                             "without it the run cannot go on");
  }
  io::write_file(directory + "/config.json", json);

  int64_t parameters = 0;
  for (const auto& p : task.model().parameters()) parameters += p.numel();
  std::cerr << directory << ": " << config.model.mixer << ", "
            << config.model.layers << " layers of " << config.model.width
            << ", " << count(static_cast<double>(parameters))
            << " parameters; Ctrl-C saves\n";
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  Line line;
  train::Hooks hooks;
  hooks.stop = [] { return stop_asked != 0; };
  hooks.progress = [&](const train::Report& r, bool reported) {
    line.show(r, reported);
    if (r.validated) write_curve(directory);
  };
  const bool done = trainer.run(hooks);
  line.close();
  if (done) {
    std::cout << directory << ": done; the curve is " << directory
              << "/curve.svg, and `aft generate " << directory
              << "` writes text\n";
  } else {
    std::cout << directory << ": saved at step " << trainer.step()
              << "; go on with `aft train --resume " << directory << "`\n";
  }
}

}  // namespace

void add_train(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train", "Train a language model on a text, or on the built-in one");
  command->add_option("preset", o->what,
                      "A preset (`aft presets`), or a JSON file like one");
  command
      ->add_option("--data", o->data,
                   "Text to train on, any file; default: the preset's, or the "
                   "built-in text")
      ->type_name("FILE");
  command
      ->add_option("--out", o->out,
                   "Directory of the run; default: runs/PRESET")
      ->type_name("DIR");
  command
      ->add_option("--resume", o->resume,
                   "Go on with the run in DIR, to the bit as if it had never "
                   "stopped")
      ->type_name("DIR");
  command->add_option("--steps", o->steps, "Short for --set train.steps=N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->footer(
      "In the directory: config.json, model.safetensors (the best so far), "
      "state/ (to go on), metrics.jsonl, curve.svg.\n"
      "\n"
      "Examples:\n"
      "  aft train text-aft-local-4x128\n"
      "  aft train text-aft-simple-6x256 --data book.txt --out book\n"
      "  aft train text-aft-local-6x256 --set model.window=64 --steps 500\n"
      "  aft train --resume book");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
