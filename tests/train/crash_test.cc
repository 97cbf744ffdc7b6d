// Injects every kind of fault into each file operation of a run: the run
// continues or fails with an error that names the file, and the next run ends
// bit-identical to an undisturbed one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aft/io/file.h"
#include "aft/train/trainer.h"
#include "tests/train/faults.h"
#include "tests/train/normed_task.h"

namespace aft::train {
namespace {

namespace fs = std::filesystem;
using faults::disk;
using faults::Fault;
using faults::Operation;

constexpr int64_t kSteps = 6;
/// A temporary file of a killed process; process 1 is always alive.
constexpr const char* kLeft = "state/.unfinished-1-0";

/// As run_training() does: the first checkpoint, the configuration, training.
void train(const std::string& root, bool resume, int64_t stop_after) {
  TrainConfig c;
  c.steps = kSteps, c.batch_size = 5, c.save_every = 2, c.validate_every = 3,
  c.report_every = 2;
  c.learning_rate = 0.01, c.warmup_steps = 1, c.ema = 0.9;
  NormedTask task;
  Trainer trainer(task, c, root);
  if (resume) {
    trainer.resume();
  } else {
    io::remove_unfinished(root);
    io::remove_unfinished(root + "/state");
    trainer.save();
    io::write_file(root + "/config.json", "{}\n");
  }
  Hooks hooks;
  hooks.stop = [&] { return trainer.step() >= stop_after; };
  trainer.run(hooks);
}

struct RunResult {
  bool ended = false, gone = false;
  std::string error;
  std::vector<Operation> operations;
};

RunResult run(const std::string& root, Fault fault = Fault::kNone,
              size_t at = 0, int64_t stop_after = kSteps) {
  const bool resume = fs::exists(root + "/config.json");
  disk = {};
  disk.root = root, disk.fault = fault, disk.at = at;
  RunResult out;
  try {
    train(root, resume, stop_after);
    faults::next("end", root);
    out.ended = true;
  } catch (const std::exception& e) {
    out.error = e.what();
  }
  out.gone = disk.gone;
  out.operations = disk.seen;
  disk = {};
  return out;
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// All files of a run by name; the metrics without times.
std::map<std::string, std::string> files(const std::string& root) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (!entry.is_directory())
      out[entry.path().lexically_relative(root)] = contents(entry.path());
  std::istringstream in(out["metrics.jsonl"]);
  std::string line, metrics;
  while (std::getline(in, line)) {
    auto j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object()) j.erase("tokens_per_second"), j.erase("seconds");
    metrics += j.dump() + "\n";
  }
  out["metrics.jsonl"] = metrics;
  return out;
}

std::vector<Fault> faults_of(const std::string& call) {
  const std::vector<Fault> ends = {Fault::kKilled, Fault::kNoPower,
                                   Fault::kNoPowerNoNames};
  const auto with = [&](std::vector<Fault> more) {
    more.insert(more.end(), ends.begin(), ends.end());
    return more;
  };
  if (call == "write")
    return with({Fault::kInterrupted, Fault::kShort, Fault::kNoSpace,
                 Fault::kBroken, Fault::kTorn});
  if (call == "create" || call == "fsync")
    return with({Fault::kInterrupted, Fault::kNoSpace, Fault::kBroken});
  if (call == "close") return with({Fault::kInterrupted, Fault::kBroken});
  if (call == "rename" || call == "mkdir")
    return with({Fault::kNoSpace, Fault::kBroken});
  if (call == "fchmod" || call == "unlink") return with({Fault::kBroken});
  if (call == "end") return ends;
  // Other operations change nothing: a kill there equals a kill at the next
  // one.
  if (call == "open" || call == "read" || call == "flock")
    return {Fault::kInterrupted, Fault::kBroken};
  return {Fault::kBroken};  // stat, access, fopen
}

bool is_end(Fault f) {
  return f == Fault::kKilled || f == Fault::kTorn || f == Fault::kNoPower ||
         f == Fault::kNoPowerNoNames;
}

bool unfinished(const std::string& path) {
  return path.find("/.unfinished-") != std::string::npos;
}

/// Whether a run may continue despite an error.
bool may_ignore(const Operation& o) {
  return o.call == "stat" || o.call == "access" || o.call == "flock" ||
         o.call == "unlink" ||
         // Temporary files that cannot be examined.
         (o.call == "open" && unfinished(o.path)) ||
         // Operations after the file was synced or renamed.
         (o.call == "close" && !unfinished(o.path));
}

bool names_a_file(const std::string& root, const std::string& error) {
  for (const char* name :
       {"/config.json", "/metrics.jsonl", "/model.safetensors",
        "/state/checkpoint.safetensors", "/state:"})
    if (error.find(root + name) != std::string::npos) return true;
  return false;
}

class Crash : public ::testing::Test {
 protected:
  void SetUp() override {
    // In memory if possible: disks wait at every rename.
    const std::string memory = "/dev/shm", place = ::testing::TempDir();
    work_ = fs::canonical(access(memory.c_str(), W_OK) == 0 ? memory : place)
                .string() +
            "/crash_test_XXXXXX";
    ASSERT_NE(mkdtemp(work_.data()), nullptr);
    fs::create_directory(work_ + "/whole");
    const RunResult whole = run(work_ + "/whole");
    ASSERT_TRUE(whole.ended) << whole.error;
    whole_ = files(work_ + "/whole");
    ASSERT_EQ(whole_.size(), 4u);
    ASSERT_GT(whole_["metrics.jsonl"].size(), 100u);
  }
  void TearDown() override { fs::remove_all(work_); }

  /// Every fault at every operation of a run that starts from a copy of
  /// `begin`.
  void disturb(const std::string& begin) {
    const std::string root = work_ + "/run";
    const auto copy = [&] {
      for (const auto& old : fs::directory_iterator(work_))
        if (old.path().filename().string().rfind("run", 0) == 0)
          fs::remove_all(old.path());
      fs::copy(begin, root, fs::copy_options::recursive);
    };
    copy();
    const RunResult counted = run(root);
    ASSERT_TRUE(counted.ended) << counted.error;
    EXPECT_TRUE(files(root) == whole_);
    const std::vector<Operation>& operations = counted.operations;
    ASSERT_GT(operations.size(), 30u);
    std::map<std::string, int> kinds;
    int cases = 0;
    for (size_t i = 0; i < operations.size(); ++i) {
      const Operation& o = operations[i];
      ++kinds[o.call];
      for (const Fault fault : faults_of(o.call)) {
        SCOPED_TRACE("operation " + std::to_string(i) + ", " + o.call + " " +
                     o.path + ", fault " +
                     std::to_string(static_cast<int>(fault)));
        copy();
        ++cases;
        check(root, o, fault, run(root, fault, i));
        const RunResult again = run(root);
        EXPECT_TRUE(again.ended) << again.error;
        const auto now = files(root);
        for (const auto& [name, text] : now)
          EXPECT_TRUE(whole_.count(name) && whole_[name] == text) << name;
        EXPECT_EQ(now.size(), whole_.size());
        if (HasFailure()) return;  // the first is enough
      }
    }
    for (const char* call : {"create", "write", "fsync", "close", "rename",
                             "mkdir", "stat", "open", "flock", "end"})
      EXPECT_GT(kinds[call], 0) << call;
    RecordProperty("operations", static_cast<int>(operations.size()));
    RecordProperty("cases", cases);
    printf("%zu operations, %d faults\n", operations.size(), cases);
  }

  void check(const std::string& root, const Operation& o, Fault fault,
             const RunResult& got) {
    if (is_end(fault)) {
      EXPECT_TRUE(got.gone) << got.error;
      return;
    }
    if (got.ended) {
      EXPECT_TRUE(fault == Fault::kInterrupted || fault == Fault::kShort ||
                  may_ignore(o));
      auto now = files(root);
      if (o.path == root + "/" + kLeft) now.erase(kLeft);
      EXPECT_TRUE(now == whole_);
      return;
    }
    EXPECT_TRUE(fault == Fault::kNoSpace || fault == Fault::kBroken)
        << got.error;
    EXPECT_TRUE(names_a_file(root, got.error)) << got.error;
    const char* reason = strerror(fault == Fault::kNoSpace ? ENOSPC : EIO);
    EXPECT_NE(got.error.find(reason), std::string::npos) << got.error;
    for (const auto& [name, text] : files(root))
      EXPECT_TRUE(!unfinished("/" + name) || name == kLeft) << name;
  }

  std::string work_;
  std::map<std::string, std::string> whole_;
};

TEST_F(Crash, NewRun) {
  fs::create_directory(work_ + "/empty");
  disturb(work_ + "/empty");
}

/// A run that was killed before, with an incomplete line and a temporary file.
TEST_F(Crash, ResumedRun) {
  const std::string begin = work_ + "/begin";
  fs::create_directory(begin);
  ASSERT_TRUE(run(begin, Fault::kNone, 0, 4).ended);
  std::ofstream(begin + "/metrics.jsonl", std::ios::app) << "{\"step\":5,\"lo";
  std::ofstream(begin + "/" + kLeft) << "half";
  disturb(begin);
}

/// The effect of each call survives a power failure once it has returned. In
/// the runs above, a later call could hide a missing sync.
TEST_F(Crash, CompletedWritesSurvivePowerFailure) {
  const std::string root = work_ + "/lasts";
  fs::create_directory(root);
  const auto lasts = [&](const std::string& path, const auto& write) {
    disk = {};
    disk.root = root;
    write();
    faults::lose_power(true);
    disk = {};
    EXPECT_TRUE(fs::exists(path)) << path;
  };
  const std::string a = root + "/a", b = a + "/b", c = a + "/c";
  lasts(a, [&] { EXPECT_TRUE(io::make_directory(a)); });
  EXPECT_FALSE(io::make_directory(a));
  lasts(b, [&] { io::append_file(b, "one\n"); });
  lasts(b, [&] { io::append_file(b, "two\n"); });
  EXPECT_EQ(contents(b), "one\ntwo\n");
  lasts(c, [&] { io::write_file(c, "old"); });
  lasts(c, [&] { io::write_file(c, "new"); });
  EXPECT_EQ(contents(c), "new");
  // The simulated disk does lose what was not synced.
  disk.root = root;
  const int fd = open((a + "/d").c_str(), O_WRONLY | O_CREAT, 0666);
  EXPECT_EQ(write(fd, "x", 1), 1);
  close(fd);
  faults::lose_power(true);
  disk = {};
  EXPECT_FALSE(fs::exists(a + "/d"));
}

}  // namespace
}  // namespace aft::train
