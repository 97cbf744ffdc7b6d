// `aft train`: a preset or a configuration to a model directory.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>

#include "aft/io/file.h"
#include "aft/tasks/vit_weights.h"
#include "aft/train/group.h"
#include "cli/commands.h"
#include "cli/curve.h"
#include "cli/model.h"

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
  std::string what, out, resume, data, init;
  std::vector<std::string> sets;
  int64_t steps = 0;
  int threads = 0;
  double timeout = 120;
};

/// The directory of a run is that of one process at a time (with several, of
/// rank 0): two would write over each other.
class Claim {
 public:
  Claim() = default;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (fd_ >= 0) close(fd_);
  }
  void take(const std::string& directory) {
    fd_ = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Where the file system has no locks, there is none.
    if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw std::runtime_error(directory +
                               ": another process is training there");
  }

 private:
  int fd_ = -1;
};

/// A new directory for a run; one that holds a run, or what is left of one, is
/// refused. A run that was killed before it had its config.json, which comes
/// after its first checkpoint, is none: its call may simply be repeated.
void make_output(const std::string& path, Claim& claim) {
  if (io::make_directory(path)) return claim.take(path);
  if (!is_directory(path))
    throw std::runtime_error(path + ": is there, and not a directory");
  for (const char* name :
       {"config.json", "model.safetensors", "metrics.jsonl"}) {
    if (exists(path + "/" + name))
      throw std::runtime_error(path + ": holds a run already (" + name +
                               "); go on with it by `aft train --resume " +
                               path + "`, or choose another --out");
  }
  if (access(path.c_str(), W_OK) != 0)
    throw std::runtime_error(path +
                             ": cannot be written to: " + std::strerror(errno));
  claim.take(path);
  io::remove_unfinished(path);
  io::remove_unfinished(path + "/state");
}

/// What may not change in a run that goes on: the model (dropout aside), and
/// what its symbols mean.
void check_same(const models::Json& stored, const models::Json& now) {
  const auto check = [&](const std::string& part, const std::string& key) {
    const models::Json &before = stored.at(part).at(key),
                       &after = now.at(part).at(key);
    if (before != after)
      throw models::ConfigError(part + "." + key + " is " + before.dump() +
                                " in this run, and cannot become " +
                                after.dump() + "; that takes a new run");
  };
  for (const std::string& key : tasks::task_kind(stored).fixed)
    check("data", key);
  for (const auto& item : stored.at("model").items())
    if (item.key() != "dropout") check("model", item.key());
}

/// Weights of another model for a new run, and a word on what was taken.
void initialise(torch::nn::Module& model, const std::string& from) {
  auto* classifier = model.as<models::ClassifierImpl>();
  if (!classifier)
    throw UsageError(
        "train: --init is for tasks of classification, and models made of "
        "blocks");
  const tasks::Transfer taken = tasks::initialise(*classifier, from);
  std::cerr << from << ": took " << tasks::summary(taken.copied) << "\n";
  if (!taken.fresh.empty())
    std::cerr << "  begin afresh: " << tasks::summary(taken.fresh) << "\n";
}

class Line {
 public:
  /// drawn: positions of kernels are drawn from softmax(w).
  Line(std::string unit, bool drawn) : unit_(std::move(unit)), drawn_(drawn) {}
  void show(const train::Report& r, bool reported) {
    char text[256];
    snprintf(text, sizeof(text), "step %lld/%lld  loss %.4f",
             static_cast<long long>(r.step), static_cast<long long>(r.steps),
             r.loss);
    std::string line = text;
    // Without a unit, examples are what is counted.
    if (!unit_.empty()) {
      snprintf(text, sizeof(text), "  %s %.4f", unit_.c_str(), r.loss * kBits);
      line += text;
    }
    snprintf(text, sizeof(text), "  %s %s/s  %s left  %.2f GB",
             count(r.tokens_per_second).c_str(),
             unit_.empty() ? "images" : "tokens",
             duration(r.seconds_left).c_str(), resident() / 1e9);
    line += text;
    if (r.validated) line += validation(r);
    if (r.sparsity) line += "  kernels: " + described(*r.sparsity, drawn_);
    if (terminal_) {
      std::cerr << '\r' << line << "\033[K" << (r.validated ? "\n" : "")
                << std::flush;
      open_ = !r.validated;
    } else if (reported) {
      std::cerr << line << std::endl;
    }
  }
  std::string validation(const train::Report& r) const {
    char text[128];
    if (!unit_.empty()) {
      snprintf(text, sizeof(text), "  validation %s %.4f (best %.4f)",
               unit_.c_str(), r.validation.loss * kBits, r.best * kBits);
      return text;
    }
    snprintf(text, sizeof(text), "  validation loss %.4f", r.validation.loss);
    std::string line = text;
    for (const auto& [name, share] : r.validation.shares) {
      snprintf(text, sizeof(text), "  %s %.2f %%", name.c_str(), 100 * share);
      line += text;
    }
    return line + (r.validation.score == r.best ? " (best)" : "");
  }
  void close() {
    if (open_) std::cerr << '\n';
    open_ = false;
  }
  ~Line() { close(); }

 private:
  const std::string unit_;
  const bool drawn_;
  const bool terminal_ = isatty(STDERR_FILENO);
  bool open_ = false;
};

/// The directory of a run, and whether it goes on.
struct Place {
  std::string directory;
  bool resume;
};

Place place_of(const Options& o, const train::World& world) {
  const bool resume = !o.resume.empty();
  if (resume == !o.what.empty())
    throw UsageError("train: expected a preset or --resume DIR, " +
                     std::string(resume ? "got both" : "got neither"));
  if (resume && !o.out.empty())
    throw UsageError(
        "train: --resume goes on in its own directory, without "
        "--out");
  if (resume && !o.init.empty())
    throw UsageError(
        "train: a run that goes on has its weights; --init is "
        "for new ones");
  if (resume) return {o.resume, true};
  const std::string name = o.what.substr(o.what.find_last_of('/') + 1);
  const std::string directory = o.out.empty() ? "runs/" + name : o.out;
  // A launcher that begins again gives the same command.
  return {directory, world.restarts > 0 && exists(directory + "/config.json")};
}

/// What is to be trained, with what the options change.
models::Json wanted(const Options& o, const Place& place) {
  const models::Json stored = place.resume ? tasks::load_config(place.directory)
                                           : preset_config(o.what);
  models::Json config = apply_sets(stored, o.sets);
  if (place.resume) check_same(stored, config);
  if (!o.data.empty()) {
    config["data"]["path"] = o.data;
    config["data"]["fingerprint"] = "";  // may be others than before
  }
  if (o.steps > 0) config["train"]["steps"] = o.steps;
  return config;
}

std::unique_ptr<train::Task> make_task(models::Json& config, bool lead) {
  Meter meter("files read");
  return tasks::task_kind(config).make(config, [&](int64_t done, int64_t all) {
    if (lead) meter.show(done, all);
  });
}

std::string text_of(const models::Json& config) {
  try {
    return config.dump(2) + "\n";
  } catch (const models::Json::exception&) {
    throw models::ConfigError(
        config["data"]["path"].get<std::string>() +
        ": the path and the names of classes must be UTF-8, as config.json is");
  }
}

/// group: null for one process. Rank 0 alone reads and writes the directory,
/// and speaks. begun becomes true where the directory has a checkpoint.
void run(const Options& o, const Place& place, train::Group* group,
         bool& begun) {
  const bool lead = !group || group->rank() == 0;
  const std::string& directory = place.directory;
  models::Json config;
  std::unique_ptr<train::Task> task;
  std::string json;
  if (lead) {
    config = wanted(o, place);
    task = make_task(config, lead);
    json = text_of(config);
    if (!o.init.empty() && !place.resume) initialise(task->model(), o.init);
  }
  if (group) json = group->broadcast(json);
  if (!lead) {
    config = models::Json::parse(json);
    task = make_task(config, lead);
  }
  const tasks::TaskKind& kind = tasks::task_kind(config);
  const train::TrainConfig recipe = train_config(config);
  train::Trainer trainer(*task, recipe, directory, group);
  // Rank 0 knows, where others do not see its files.
  const bool resume = group ? group->any(lead && place.resume) : place.resume;
  Claim claim;
  if (resume) {
    if (lead) claim.take(directory);
    if (lead && !trainer.has_checkpoint())
      throw std::runtime_error(
          directory +
          "/state/checkpoint.safetensors: is not there, and without it the run "
          "cannot go on");
    trainer.resume();
    if (trainer.step() >= recipe.steps) {
      if (lead)
        std::cout << directory << ": has " << trainer.step()
                  << " steps already; `--steps N` with more goes on\n";
      return;
    }
    if (lead)
      std::cerr << directory << ": going on from step " << trainer.step()
                << '\n';
  } else if (lead) {
    if (o.out.empty()) io::make_directory("runs");
    make_output(directory, claim);
    // Before config.json: who resumes finds these first weights, which may be
    // --init's, and never others.
    trainer.save();
  }
  if (lead) io::write_file(directory + "/config.json", json);
  // In all processes: rank 0 has come here.
  begun = !group || group->any(true);

  if (lead) {
    int64_t parameters = 0;
    for (const auto& p : task->model().parameters()) parameters += p.numel();
    std::cerr << directory << ": " << described(config["model"]) << ", "
              << count(static_cast<double>(parameters)) << " parameters"
              << (group ? ", " + std::to_string(group->size()) + " processes"
                        : "")
              << "; Ctrl-C saves\n";
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  Line line(kind.unit, has_one_position(config["model"]));
  train::Hooks hooks;
  hooks.stop = [] { return stop_asked != 0; };
  if (lead)
    hooks.progress = [&](const train::Report& r, bool reported) {
      line.show(r, reported);
      if (r.validated) write_curve(directory);
    };
  const bool done = trainer.run(hooks);
  line.close();
  if (!lead) return;
  if (done) {
    std::string next = kind.next;
    for (size_t at = 0; (at = next.find("DIR", at)) != std::string::npos;
         at += directory.size())
      next.replace(at, 3, directory);
    std::cout << directory << ": done; the curve is " << directory
              << "/curve.svg; " << next << "\n";
  } else {
    std::cout << directory << ": saved at step " << trainer.step()
              << "; go on with `aft train --resume " << directory << "`\n";
  }
}

/// As one of several processes, where a launcher says so.
void run(const Options& o) {
  const train::World world = train::world_of_process();
  const Place place = place_of(o, world);
  bool begun = false;
  if (world.size == 1) return run(o, place, nullptr, begun);
  train::Group group(world, o.timeout);
  try {
    run(o, place, &group, begun);
    group.leave();
  } catch (const train::PeerError& e) {
    if (!begun) throw;
    throw train::PeerError(std::string(e.what()) +
                           "; the last checkpoint is kept: go on with `aft "
                           "train --resume " +
                           place.directory + "`");
  } catch (const c10::Error& e) {
    group.fail(e.what_without_backtrace());
    throw;
  } catch (const std::exception& e) {
    group.fail(e.what());
    throw;
  }
}

}  // namespace

void add_train(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a model on a text, on pictures or on classes of pictures, yours "
      "or the built-in ones");
  command->add_option("preset", o->what,
                      "A preset (`aft presets`), or a JSON file like one");
  command
      ->add_option("--data", o->data,
                   "Text (any file) or pictures (CIFAR-10 or a folder of PNG "
                   "and JPEG; for classes, one folder a class) to train on; "
                   "default: the preset's, or built-in data")
      ->type_name("PATH");
  command
      ->add_option("--out", o->out,
                   "Directory of the run; default: runs/PRESET")
      ->type_name("DIR");
  command
      ->add_option("--init", o->init,
                   "Classes: first weights from the model in DIR, or from a "
                   "safetensors file of ViT or DeiT: all that fit")
      ->type_name("PATH");
  command
      ->add_option("--resume", o->resume,
                   "Go on with the run in DIR, to the bit as if it had never "
                   "stopped")
      ->type_name("DIR");
  command->add_option("--steps", o->steps, "Short for --set train.steps=N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command
      ->add_option("--timeout", o->timeout,
                   "Several processes (`aft launch`): a process that is silent "
                   "for S seconds ends all; default: 120")
      ->check(real(1, 1e6))
      ->type_name("S");
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
      "  aft train image-aft-local-4x128 --data holiday/ --out holiday-model\n"
      "  aft train classify-aft-conv-4x96 --data flowers/ --out flowers-model\n"
      "  aft train --resume book");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
