// Lines of the standard input, and signals before and while they are read.
#include "cli/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

namespace aft::cli {
namespace {

/// A pipe as the standard input.
class Input : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    ASSERT_EQ(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    close(ends[0]);
    in_ = ends[1];
    signal(SIGINT, SIG_DFL);  // background jobs of a script ignore it
    catch_interrupts(1000);
  }
  void TearDown() override { close_input(); }
  void write_input(const std::string& text) {
    ASSERT_EQ(write(in_, text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }
  void close_input() {
    if (in_ >= 0) close(in_);
    in_ = -1;
  }

  std::string line_;

 private:
  int in_ = -1;
};

TEST_F(Input, IsReadLineByLine) {
  const std::string longest(10000, 'x');
  write_input("one\n\n" + longest + "\nla");
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    write_input("st");
    close_input();
  });
  for (const std::string& expected :
       {std::string("one"), std::string(), longest, std::string("last")}) {
    EXPECT_TRUE(read_line(line_, interrupts()));
    EXPECT_EQ(line_, expected);
  }
  later.join();
  EXPECT_FALSE(read_line(line_, interrupts()));
}

TEST_F(Input, IsNotAwaitedAfterASignal) {
  const int before = interrupts();
  raise(SIGINT);
  EXPECT_FALSE(read_line(line_, before));
  // It is counted only once.
  write_input("next\n");
  EXPECT_TRUE(read_line(line_, interrupts()));
  EXPECT_EQ(line_, "next");
}

TEST_F(Input, IsNotAwaitedOnceASignalArrives) {
  const int before = interrupts();
  std::thread later([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(getpid(), SIGINT);
  });
  EXPECT_FALSE(read_line(line_, before));
  EXPECT_EQ(interrupts(), before + 1);
  later.join();
}

/// As for background jobs of a script.
TEST(Signals, RemainIgnored) {
  signal(SIGINT, SIG_IGN);
  catch_interrupts(1000);
  const int before = interrupts();
  raise(SIGINT);
  EXPECT_EQ(interrupts(), before);
  raise(SIGTERM);
  EXPECT_EQ(interrupts(), before + 1);
  signal(SIGINT, SIG_DFL);
  catch_interrupts(1000);
  raise(SIGINT);
  EXPECT_EQ(interrupts(), before + 2);
}

}  // namespace
}  // namespace aft::cli
