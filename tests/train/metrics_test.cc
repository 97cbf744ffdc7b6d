// The metrics of a run: written, read, and cut at a step.
#include "aft/train/metrics.h"

#include <gtest/gtest.h>

#include "aft/io/file.h"
#include "tests/scratch.h"

namespace aft::train {
namespace {

constexpr char kFirst[] =
    R"({"step":10,"loss":2.5,"rate":0.001,"norm":1.0,"seconds":3.0,)"
    R"("tokens_per_second":800.0})"
    "\n";
constexpr char kSecond[] =
    R"({"step":20,"loss":2.0,"rate":0.001,"norm":0.5,"seconds":6.0,)"
    R"("tokens_per_second":900.0,"validation":1.75,"top1":0.5,"top5":1.0})"
    "\n";

std::string written() {
  const std::string path = new_folder() + "/metrics";
  append_metrics(path, {10, 2.5, 1e-3, 1, 3, 800, {}, {}});
  append_metrics(
      path, {20, 2, 1e-3, 0.5, 6, 900, 1.75, {{"top1", 0.5}, {"top5", 1}}});
  return path;
}

TEST(Metrics, AreOneLineOfJsonPerReport) {
  EXPECT_EQ(io::read_file(written(), 1000), std::string(kFirst) + kSecond);
}

TEST(Metrics, AreReadAsTheyWereWritten) {
  const std::vector<Metrics> lines = read_metrics(written());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].step, 10);
  EXPECT_EQ(lines[0].loss, 2.5);
  EXPECT_EQ(lines[0].rate, 1e-3);
  EXPECT_EQ(lines[0].norm, 1);
  EXPECT_EQ(lines[0].seconds, 3);
  EXPECT_EQ(lines[0].tokens_per_second, 800);
  EXPECT_FALSE(lines[0].validation);
  EXPECT_TRUE(lines[0].values.empty());
  EXPECT_EQ(lines[1].validation, 1.75);
  EXPECT_EQ(lines[1].value("top1"), 0.5);
  EXPECT_EQ(lines[1].value("top5"), 1);
  EXPECT_EQ(lines[1].value("kernel_top"), 0);
}

TEST(Metrics, InvalidLinesAreSkipped) {
  EXPECT_TRUE(read_metrics(new_folder() + "/none").empty());
  const std::string path = written();
  const std::string deep(100000, '[');
  io::append_file(
      path, "null\n\n{\"loss\":1}\n{\"step\":\"7\"}\n{\"step\":-1}\n" + deep +
                "\n{\"step\":1e300}\n{\"step\":30,\"lo");
  EXPECT_EQ(read_metrics(path).size(), 2u);
  // Values of older versions may be missing, or of another type.
  io::append_file(path, "\n{\"step\":30,\"loss\":\"x\",\"validation\":null}\n");
  const std::vector<Metrics> lines = read_metrics(path);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2].loss, 0);
  EXPECT_FALSE(lines[2].validation);
}

TEST(Metrics, AreCutAtAStep) {
  EXPECT_EQ(truncate_metrics(new_folder() + "/none", 5).step, 0);
  const std::string path = written();
  io::append_file(path, "{\"step\":30}\n{\"step\":40,\"lo");
  EXPECT_EQ(truncate_metrics(path, 20).seconds, 6);
  EXPECT_EQ(io::read_file(path, 1000), std::string(kFirst) + kSecond);
  EXPECT_EQ(truncate_metrics(path, 19).step, 10);
  EXPECT_EQ(io::read_file(path, 1000), kFirst);
  // The validation of a stopped run, which a resumed one does not repeat.
  Metrics stopped;
  stopped.step = 10, stopped.validation = 2, stopped.stopped = true;
  append_metrics(path, stopped);
  EXPECT_TRUE(read_metrics(path).back().stopped);
  EXPECT_FALSE(truncate_metrics(path, 10).stopped);
  EXPECT_EQ(io::read_file(path, 1000), kFirst);
  EXPECT_EQ(truncate_metrics(path, 9).seconds, 0);
  EXPECT_EQ(io::read_file(path, 1000), "");
}

}  // namespace
}  // namespace aft::train
