// Memory is O(B T D): for 16384 positions, forward and backward of every
// operator need far less than one T x T buffer. Each runs in a separate
// process.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "aft/ops/ops.h"

namespace aft::ops {
namespace {

using at::Tensor;

constexpr int64_t kD = 64;

/// Peak resident memory of this process in bytes.
double peak() {
  double kilobytes = -1;
  char line[256];
  FILE* status = std::fopen("/proc/self/status", "r");
  while (status && std::fgets(line, sizeof(line), status)) {
    if (std::strncmp(line, "VmHWM:", 6) == 0) {
      kilobytes = std::atof(line + 6);
    }
  }
  if (status) std::fclose(status);
  return kilobytes * 1024;
}

struct Inputs {
  Tensor q, k, v;
  explicit Inputs(int64_t T, int64_t heads = kD)
      : q(leaf({1, T, kD})), k(leaf({1, T, heads})), v(leaf({1, T, kD})) {}
  static Tensor leaf(at::IntArrayRef shape) {
    return at::randn(shape).requires_grad_(true);
  }
};

/// By how many [T, D] tensors forward and backward of `loss` raise the peak.
/// Runs in a child process, so that the peak of one does not hide that of
/// another. -1: failed.
double rise(int64_t T, int64_t heads,
            const std::function<Tensor(const Inputs&)>& call) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    double tensors = -1;
    try {
      at::set_num_threads(2);
      const Inputs inputs(T, heads);
      // The first call loads code and starts thread pools.
      const Inputs small(64, heads);
      simple(small.q, small.q, small.v).sum().backward();
      const double before = peak();
      const Tensor y = call(inputs);
      y.backward(at::ones_like(y));
      tensors = (peak() - before) / (sizeof(float) * T * kD);
      if (!inputs.v.grad().isfinite().all().item<bool>()) tensors = -1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    const ssize_t written = write(ends[1], &tensors, sizeof(tensors));
    _exit(written == sizeof(tensors) ? 0 : 1);
  }
  double tensors = -1;
  close(ends[1]);
  if (read(ends[0], &tensors, sizeof(tensors)) != sizeof(tensors)) tensors = -1;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return tensors;
}

Common causal() {
  Common common;
  common.causal = true;
  return common;
}

/// The biases of full and local, as factors.
PositionBias factors(int64_t T) {
  return {at::randn({T, 16}).mul_(0.1).requires_grad_(true),
          at::randn({T, 16}).mul_(0.1).requires_grad_(true),
          {}};
}

constexpr int64_t kT = 16384;
constexpr double kMost = 40;

void expect_small(const char* name, int64_t heads,
                  const std::function<Tensor(const Inputs&)>& call) {
  const double tensors = rise(kT, heads, call);
  EXPECT_GT(tensors, 1) << name;  // y, r and three gradients at least
  EXPECT_LE(tensors, kMost) << name;
  std::printf("%-16s %5.1f tensors of [T, D]\n", name, tensors);
}

TEST(Memory, Simple) {
  expect_small("simple causal", kD,
               [](const Inputs& x) { return simple(x.q, x.k, x.v, causal()); });
  expect_small("simple", kD,
               [](const Inputs& x) { return simple(x.q, x.k, x.v); });
}

TEST(Memory, Full) {
  expect_small("full causal", kD, [](const Inputs& x) {
    return full(x.q, x.k, x.v, factors(kT), causal());
  });
}

TEST(Memory, Local) {
  expect_small("local causal", kD, [](const Inputs& x) {
    return local(x.q, x.k, x.v, 32, factors(kT), false, causal());
  });
  expect_small("local", kD, [](const Inputs& x) {
    return local(x.q, x.k, x.v, 100, factors(kT));
  });
}

TEST(Memory, Conv) {
  for (int64_t heads : {kD, int64_t{4}}) {
    expect_small("conv causal", heads, [=](const Inputs& x) {
      const Tensor w = at::randn({heads, 20}).requires_grad_(true);
      return conv(x.q, x.k, x.v, w, {kT}, false, causal());
    });
    expect_small("conv 2d", heads, [=](const Inputs& x) {
      const Tensor w = at::randn({heads, 7, 7}).requires_grad_(true);
      return conv(x.q, x.k, x.v, w, {128, 128});
    });
  }
}

// Spikes make rows take the log-space path, which has additional buffers.
TEST(Memory, HostileLocal) {
  expect_small("local hostile", kD, [](const Inputs& x) {
    {
      const at::NoGradGuard no_grad;
      x.k.select(1, kT / 2).fill_(1e4);
    }
    return local(x.q, x.k, x.v, 8, factors(kT), false, causal());
  });
}

// The same measurement detects the T x T buffer of a naive implementation.
TEST(Memory, TheTestCanFail) {
  const int64_t T = 4096;
  const double tensors = rise(T, kD, [](const Inputs& x) {
    const Tensor w = at::matmul(x.q[0], x.q[0].t()).mul(0.01).exp();
    const Tensor e = x.k.exp();
    return at::sigmoid(x.q) * at::matmul(w, e * x.v) / at::matmul(w, e);
  });
  EXPECT_GT(tensors, kMost);
}

}  // namespace
}  // namespace aft::ops
