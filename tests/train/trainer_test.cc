// Stopping, resuming, invalid values and checkpoints; the entropy of kernels.
#include "aft/train/trainer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "aft/tasks/language.h"
#include "tests/scratch.h"
#include "tests/train/normed_task.h"

namespace aft::train {
namespace {

tasks::LanguageConfig small_config() {
  tasks::LanguageConfig c;
  c.model.mixer = "aft-local", c.model.layers = 2, c.model.width = 16;
  c.model.length = 16;
  c.model.mixer.set({{"window", 4}, {"rank", 3}});
  c.train.steps = 12, c.train.batch_size = 2, c.train.grad_accumulation = 2;
  c.train.warmup_steps = 3, c.train.report_every = 2,
  c.train.validate_every = 5;
  c.train.save_every = 4, c.train.ema = 0.9;
  return c;
}

data::Text text() {
  std::string bytes;
  for (int i = 0; i < 4000; ++i) bytes += static_cast<char>('a' + i * i % 19);
  return data::Text::from(bytes, "bytes");
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Runs for `stop_after` steps, or to the end.
bool run(const tasks::LanguageConfig& c, const std::string& directory,
         int stop_after = 1000) {
  tasks::LanguageTask task(c, text());
  Trainer trainer(task, c.train, directory);
  if (trainer.has_checkpoint()) trainer.resume();
  int steps = 0;
  Hooks hooks;
  hooks.stop = [&] { return ++steps >= stop_after; };
  return trainer.run(hooks);
}

/// The metrics without times.
std::string metrics(const std::string& directory) {
  std::istringstream in(contents(directory + "/metrics.jsonl"));
  std::string line, out;
  while (std::getline(in, line)) {
    auto j = base::Json::parse(line);
    j.erase("tokens_per_second"), j.erase("seconds");
    out += j.dump() + "\n";
  }
  return out;
}

TEST(Trainer, LearnsAndSavesAModel) {
  tasks::LanguageConfig c = small_config();
  c.train.steps = 150, c.train.learning_rate = 1e-2, c.train.ema = 0;
  c.model.dropout = 0;
  const std::string directory = new_folder();
  ASSERT_TRUE(run(c, directory));
  std::istringstream lines(contents(directory + "/metrics.jsonl"));
  std::string line, last;
  double first = 0;
  while (std::getline(lines, line)) {
    if (first == 0) first = base::Json::parse(line)["loss"].get<double>();
    last = line;
  }
  EXPECT_GT(first, 4.5);
  EXPECT_LT(base::Json::parse(last)["validation"].get<double>(), 3);
  models::SequenceModel model(c.model);
  models::load_tensors(io::RunDirectory(directory).weights(),
                       models::tensors_of(*model));
}

TEST(Trainer, StoppedAndResumedIsBitIdentical) {
  const tasks::LanguageConfig c = small_config();
  const std::string whole = new_folder();
  ASSERT_TRUE(run(c, whole));
  for (int stop_after : {1, 3, 5}) {
    SCOPED_TRACE(stop_after);
    const std::string parts = new_folder();
    int runs = 1;
    while (!run(c, parts, stop_after)) ++runs;
    EXPECT_GE(runs, 3);
    for (const char* file :
         {"/model.safetensors", "/state/checkpoint.safetensors"})
      EXPECT_TRUE(contents(whole + file) == contents(parts + file)) << file;
    EXPECT_EQ(metrics(whole), metrics(parts));
  }
}

TEST(Trainer, RepeatsTheMetricsAfterTheCheckpoint) {
  const tasks::LanguageConfig c = small_config();
  const std::string whole = new_folder(), torn = new_folder();
  ASSERT_TRUE(run(c, whole));
  ASSERT_FALSE(run(c, torn, 7));
  // As if it had been killed later, while writing a line.
  std::ofstream(torn + "/metrics.jsonl", std::ios::app)
      << "{\"step\":8,\"loss\":99}\n{\"step\":10,\"lo";
  ASSERT_TRUE(run(c, torn));
  EXPECT_EQ(metrics(whole), metrics(torn));
}

TEST(Trainer, LimitsTheWarmup) {
  TrainConfig config;
  config.steps = 20, config.warmup_steps = 100;
  EXPECT_EQ(warmup_steps(config), 5);
  config.steps = 3;
  EXPECT_EQ(warmup_steps(config), 1);
  config.steps = 400;
  EXPECT_EQ(warmup_steps(config), 100);
  // The learning rate reaches its peak.
  tasks::LanguageConfig c = small_config();
  c.train.steps = 8, c.train.warmup_steps = 1000;
  tasks::LanguageTask task(c, data::Text::open("", "bytes"));
  Trainer trainer(task, c.train, new_folder());
  trainer.advance();
  EXPECT_EQ(trainer.advance().rate, c.train.learning_rate);
}

TEST(Trainer, IgnoresInvalidLinesOfMetrics) {
  const tasks::LanguageConfig c = small_config();
  const std::string whole = new_folder(), odd = new_folder();
  ASSERT_TRUE(run(c, whole));
  ASSERT_FALSE(run(c, odd, 7));
  // Deep enough to overflow the stack of a recursive parser.
  const std::string open(100000, '['), close(100000, ']');
  std::ofstream(odd + "/metrics.jsonl", std::ios::app)
      << open << "\n"
      << open << close << "\n{\"step\":" << open << close
      << "}\n{\"step\":1e300}\n{\"step\":\"7\"}\n{\"step\":null}\nnull\n\n";
  ASSERT_TRUE(run(c, odd));
  EXPECT_EQ(metrics(whole), metrics(odd));
}

/// Killed between checkpoints: the step after the checkpoint is repeated, but
/// updates the statistics only once.
TEST(Trainer, RunningStatisticsResumeBitExactly) {
  TrainConfig c;
  c.steps = 12, c.batch_size = 5, c.save_every = 3, c.validate_every = 4,
  c.learning_rate = 0.01;
  c.warmup_steps = 1, c.ema = 0.9;
  const std::string whole = new_folder(), torn = new_folder();
  {
    NormedTask task;
    ASSERT_TRUE(Trainer(task, c, whole).run({}));
    EXPECT_GT(
        task.model().named_buffers()["1.running_var"].sum().item<double>(), 0);
  }
  {
    NormedTask task;
    Hooks hooks;
    hooks.progress = [](const Report& r, bool) {
      if (r.step == 8) throw std::runtime_error("killed");
    };
    EXPECT_THROW(Trainer(task, c, torn).run(hooks), std::runtime_error);
  }
  NormedTask task;
  Trainer trainer(task, c, torn);
  trainer.resume();
  EXPECT_EQ(trainer.step(), 6);
  ASSERT_TRUE(trainer.run({}));
  for (const char* file :
       {"/model.safetensors", "/state/checkpoint.safetensors"})
    EXPECT_TRUE(contents(whole + file) == contents(torn + file)) << file;
}

TEST(Trainer, NonFiniteLossStopsAndKeepsTheCheckpoint) {
  tasks::LanguageConfig c = small_config();
  const std::string directory = new_folder();
  ASSERT_FALSE(run(c, directory, 4));
  const std::string before =
      contents(directory + "/state/checkpoint.safetensors");
  tasks::LanguageTask task(c, text());
  Trainer trainer(task, c.train, directory);
  trainer.resume();
  {
    torch::NoGradGuard no_grad;
    task.model().parameters()[0].fill_(std::nanf(""));
  }
  try {
    trainer.run({});
    FAIL() << "no error";
  } catch (const TrainError& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("step 5"), std::string::npos) << message;
    EXPECT_NE(message.find(directory), std::string::npos) << message;
  }
  EXPECT_TRUE(contents(directory + "/state/checkpoint.safetensors") == before);
}

TEST(Trainer, DoesNotSaveBrokenWeights) {
  tasks::LanguageConfig c = small_config();
  c.train.save_every = 2;
  const std::string whole = new_folder(), directory = new_folder();
  ASSERT_TRUE(run(c, whole));
  {
    tasks::LanguageTask task(c, text());
    Trainer trainer(task, c.train, directory);
    Hooks hooks;
    hooks.progress = [&](const Report& r, bool) {
      torch::NoGradGuard no_grad;
      if (r.step == 4) task.model().parameters()[0].fill_(std::nanf(""));
    };
    EXPECT_THROW(trainer.run(hooks), TrainError);
  }
  {
    tasks::LanguageTask task(c, text());
    Trainer trainer(task, c.train, directory);
    trainer.resume();
    EXPECT_EQ(trainer.step(), 2);
  }
  ASSERT_TRUE(run(c, directory));
  EXPECT_TRUE(contents(whole + "/model.safetensors") ==
              contents(directory + "/model.safetensors"));
}

TEST(Trainer, DoesNotSaveBrokenWeightsWhenStopped) {
  tasks::LanguageConfig c = small_config();
  const std::string directory = new_folder();
  ASSERT_FALSE(run(c, directory, 3));
  const std::string before =
      contents(directory + "/state/checkpoint.safetensors");
  tasks::LanguageTask task(c, text());
  Trainer trainer(task, c.train, directory);
  trainer.resume();
  Hooks hooks;
  hooks.stop = [&] {
    torch::NoGradGuard no_grad;
    task.model().parameters()[0].fill_(std::nanf(""));
    return true;
  };
  EXPECT_THROW(trainer.run(hooks), TrainError);
  EXPECT_TRUE(contents(directory + "/state/checkpoint.safetensors") == before);
}

TEST(Trainer, RejectsANonFiniteCheckpoint) {
  tasks::LanguageConfig c = small_config();
  const std::string directory = new_folder();
  tasks::LanguageTask task(c, text());
  {
    torch::NoGradGuard no_grad;
    task.model().parameters()[1].flatten()[2].fill_(std::nanf(""));
    Trainer(task, c.train, directory).save();
  }
  tasks::LanguageTask other(c, text());
  const torch::Tensor before = other.model().parameters()[0].clone();
  Trainer trainer(other, c.train, directory);
  try {
    trainer.resume();
    FAIL() << "no error";
  } catch (const io::Error& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("checkpoint.safetensors: tensor 'model."),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("at element 2"), std::string::npos) << message;
  }
  EXPECT_TRUE(torch::equal(before, other.model().parameters()[0]));
}

TEST(Trainer, RejectsMoreExamplesThanCanBeCounted) {
  tasks::LanguageConfig c = small_config();
  tasks::LanguageTask task(c, text());
  for (int64_t TrainConfig::*key :
       {&TrainConfig::steps, &TrainConfig::batch_size,
        &TrainConfig::grad_accumulation}) {
    TrainConfig huge = c.train;
    huge.*key = std::numeric_limits<int64_t>::max();
    EXPECT_THROW(Trainer(task, huge, new_folder()), TrainError);
  }
}

TEST(Trainer, RejectsInvalidMetadata) {
  tasks::LanguageConfig c = small_config();
  const std::string directory = new_folder();
  ASSERT_FALSE(run(c, directory, 2));
  const std::string file = directory + "/state/checkpoint.safetensors";
  for (const char* step : {"-5", "x", "", "9223372036854775808x"}) {
    const io::SafeTensors old = io::SafeTensors::open(file);
    std::map<std::string, std::string> metadata = old.metadata();
    metadata["step"] = step;
    io::save_safetensors(file, old.tensors(), metadata);
    try {
      run(c, directory);
      FAIL() << "no error";
    } catch (const io::Error& e) {
      EXPECT_NE(std::string(e.what()).find("'step'"), std::string::npos)
          << e.what();
    }
  }
}

TEST(Trainer, ResumeRemovesTemporaryFiles) {
  tasks::LanguageConfig c = small_config();
  const std::string directory = new_folder();
  ASSERT_FALSE(run(c, directory, 2));
  // The first has the number of a live but unrelated process.
  const std::string dead = directory + "/state/.unfinished-1-0",
                    other = directory + "/.unfinished-999999999-7",
                    lives = directory + "/.unfinished-999999998-7";
  for (const std::string& path : {dead, other, lives})
    std::ofstream(path) << "x";
  const int fd = open(lives.c_str(), O_RDONLY);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);  // like the process that writes it
  ASSERT_FALSE(run(c, directory, 1));
  EXPECT_FALSE(std::ifstream(dead).good());
  EXPECT_FALSE(std::ifstream(other).good());
  EXPECT_TRUE(std::ifstream(lives).good());
  close(fd);
}

TEST(Trainer, RejectsTheCheckpointOfAnotherModel) {
  tasks::LanguageConfig c = small_config();
  const std::string directory = new_folder();
  ASSERT_FALSE(run(c, directory, 2));
  c.model.width = 32;
  try {
    run(c, directory);
    FAIL() << "no error";
  } catch (const io::Error& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("must be F32"), std::string::npos) << message;
    EXPECT_NE(message.find("checkpoint.safetensors"), std::string::npos);
  }
  c = small_config(), c.train.ema = 0;
  EXPECT_THROW(run(c, directory), io::Error);
  c = small_config(), c.train.batch_size = 0;
  EXPECT_THROW(run(c, directory), TrainError);
}

tasks::LanguageConfig conv_config() {
  tasks::LanguageConfig c = small_config();
  c.model.mixer = "aft-conv";
  c.model.mixer.set({{"window", 5}, {"heads", 4}});
  return c;
}

TEST(Entropy, NeedsAModelWithKernels) {
  tasks::LanguageConfig c = small_config();
  c.train.entropy_weight = 0.1;
  tasks::LanguageTask task(c, text());
  try {
    Trainer trainer(task, c.train, new_folder());
    FAIL();
  } catch (const TrainError& e) {
    EXPECT_STREQ(
        e.what(),
        "train.entropy_weight is for models with aft-conv, and must be 0 for "
        "others, got 0.1");
  }
}

/// The gradients of a step are those of loss + entropy * reg(w), however many
/// micro-batches there are; the reported loss is the task's.
TEST(Entropy, AddsItsGradientsOncePerStep) {
  tasks::LanguageConfig c = conv_config();
  c.model.dropout = 0, c.train.grad_clip = 0, c.train.grad_accumulation = 2;
  const auto losses_and_norms = [&](double entropy) {
    c.train.entropy_weight = entropy;
    tasks::LanguageTask task(c, text());
    for (auto& p : task.model().named_parameters())
      if (p.key().find("mixer.gamma") != std::string::npos)
        p.value().detach().fill_(1);
    Trainer trainer(task, c.train, new_folder());
    const Report report = trainer.advance();
    return std::make_pair(report.loss, report.norm);
  };
  const auto without = losses_and_norms(0), with = losses_and_norms(100);
  EXPECT_EQ(without.first, with.first);
  // Expected: the gradients of one step, plus those of the entropy.
  c.train.entropy_weight = 0;
  tasks::LanguageTask task(c, text());
  for (auto& p : task.model().named_parameters())
    if (p.key().find("mixer.gamma") != std::string::npos)
      p.value().detach().fill_(1);
  task.model().train();
  for (int64_t i = 0; i < 2; ++i)
    (task.loss(2 * i, 2, static_cast<uint64_t>(i)) / 2).backward();
  (100 * nn::kernel_entropy(task.model())).backward();
  double sum = 0;
  for (const auto& p : task.model().parameters())
    sum += p.grad().square().sum().item<double>();
  EXPECT_NEAR(with.second, std::sqrt(sum), 1e-4 * std::sqrt(sum));
  EXPECT_GT(with.second, 2 * without.second);
}

TEST(Entropy, ReportsAndReducesSparsity) {
  const auto last = [](double entropy) {
    tasks::LanguageConfig c = conv_config();
    c.train.steps = 100, c.train.entropy_weight = entropy, c.train.ema = 0;
    c.train.schedule = "constant", c.train.learning_rate = 0.02;
    const std::string directory = new_folder();
    EXPECT_TRUE(run(c, directory));
    std::istringstream in(contents(directory + "/metrics.jsonl"));
    std::string line, end;
    while (std::getline(in, line)) end = line;
    return base::Json::parse(end);
  };
  const auto plain = last(0), sparse = last(1);
  EXPECT_LE(plain["kernel_entropy"].get<double>(), std::log(5) + 1e-6);
  EXPECT_LT(sparse["kernel_entropy"].get<double>(),
            plain["kernel_entropy"].get<double>() - 0.05);
  EXPECT_GT(sparse["kernel_top"].get<double>(),
            plain["kernel_top"].get<double>());
}

/// Gumbel samples are a function of the seed and the step.
TEST(Gumbel, StoppedAndResumedIsBitIdentical) {
  tasks::LanguageConfig c = conv_config();
  c.model.mixer.set({{"gumbel", 0.5}});
  c.train.entropy_weight = 0.001;
  const std::string whole = new_folder(), parts = new_folder();
  EXPECT_TRUE(run(c, whole));
  EXPECT_FALSE(run(c, parts, 5));
  EXPECT_FALSE(run(c, parts, 3));
  EXPECT_TRUE(run(c, parts));
  EXPECT_EQ(contents(whole + "/state/checkpoint.safetensors"),
            contents(parts + "/state/checkpoint.safetensors"));
  EXPECT_EQ(contents(whole + "/model.safetensors"),
            contents(parts + "/model.safetensors"));
  EXPECT_EQ(metrics(whole), metrics(parts));
}

}  // namespace
}  // namespace aft::train
