// The layout of run directories, and the lock on them.
#include "aft/io/run_directory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "aft/io/file.h"
#include "tests/io/message_of.h"
#include "tests/scratch.h"

namespace aft::io {
namespace {

TEST(RunDirectory, NamesItsFiles) {
  const RunDirectory d("runs/text");
  EXPECT_EQ(d.path(), "runs/text");
  EXPECT_EQ(d.config(), "runs/text/config.json");
  EXPECT_EQ(d.weights(), "runs/text/model.safetensors");
  EXPECT_EQ(d.checkpoint(), "runs/text/state/checkpoint.safetensors");
  EXPECT_EQ(d.metrics(), "runs/text/metrics.jsonl");
  EXPECT_EQ(d.curve(), "runs/text/curve.svg");
  EXPECT_EQ(d.plots(), "runs/text/plots");
  EXPECT_EQ(d.data(), "runs/text/data.txt");
}

TEST(RunDirectory, ProvesThatItHoldsARun) {
  const RunDirectory d(new_folder());
  EXPECT_EQ(d.proof(), "");
  make_directory(d.state());
  EXPECT_FALSE(d.has_checkpoint());
  write_file(d.checkpoint(), "");
  EXPECT_TRUE(d.has_checkpoint());
  EXPECT_EQ(d.proof(), "") << "killed before its configuration";
  write_file(d.metrics(), "");
  EXPECT_EQ(d.proof(), d.metrics());
  write_file(d.weights(), "");
  EXPECT_EQ(d.proof(), d.weights());
  EXPECT_FALSE(d.has_config());
  d.write_config("{}");
  EXPECT_TRUE(d.has_config() && d.has_weights());
  EXPECT_EQ(d.proof(), d.config());
}

TEST(RunDirectory, OwnsItsFiles) {
  const RunDirectory d(new_folder() + "/run");
  d.create(), make_directory(d.state()), make_directory(d.plots());
  EXPECT_FALSE(RunDirectory::owns(d.weights())) << "holds no run yet";
  d.write_config("{}");
  for (const std::string& file :
       {d.config(), d.weights(), d.checkpoint(), d.metrics(), d.curve(),
        d.data(), d.path() + "//model.safetensors",
        d.path() + "/./state/../config.json", d.state() + "/other"})
    EXPECT_TRUE(RunDirectory::owns(file)) << file;
  for (const std::string& file :
       {d.path() + "/other", d.plots() + "/curve.svg",
        d.path() + "/../data.txt", std::string("config.json"),
        std::string("/config.json")})
    EXPECT_FALSE(RunDirectory::owns(file)) << file;
}

TEST(RunDirectory, IsCreatedWithItsParents) {
  const std::string top = new_folder();
  const RunDirectory d(top + "/runs/text");
  EXPECT_TRUE(d.create());
  EXPECT_TRUE(exists(d.path()));
  EXPECT_FALSE(d.create());
  EXPECT_TRUE(RunDirectory(top + "/with/slash/").create());
  const std::string file = top + "/file";
  write_file(file, "");
  EXPECT_EQ(message_of([&] { RunDirectory(file).create(); }),
            file + ": exists but is not a directory");
  EXPECT_TRUE(RunDirectory(top + "/a/b/c").create());
  EXPECT_EQ(message_of([&] { RunDirectory(file + "/a/b").create(); }),
            file + "/a: cannot be created: Not a directory");
}

TEST(RunLock, AdmitsOneProcess) {
  const RunDirectory d(new_folder() + "/run");
  {
    RunLock lock, other;
    lock.create(d);
    EXPECT_EQ(message_of([&] { other.acquire(d); }),
              d.path() + ": another process is training in this directory");
  }
  RunLock lock;
  lock.acquire(d);
}

TEST(RunLock, RejectsADirectoryWithARun) {
  const RunDirectory d(new_folder());
  make_directory(d.state());
  write_file(d.checkpoint(), "of a run that was killed at its start");
  write_file(d.state() + "/.unfinished-1-1", "");
  { RunLock().create(d); }
  EXPECT_FALSE(exists(d.state() + "/.unfinished-1-1"));
  d.write_config("{}");
  RunLock lock;
  EXPECT_THROW(lock.create(d), RunExists);
  EXPECT_EQ(message_of([&] { lock.create(d); }),
            d.path() + ": already holds a run (config.json)");
}

}  // namespace
}  // namespace aft::io
