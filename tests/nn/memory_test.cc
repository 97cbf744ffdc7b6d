// Mixers whose memory is linear in T: with four times the positions, forward
// and backward raise the peak about four times as much. Each measurement runs
// in a forked process. This process starts no thread, which a fork would not
// copy.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "aft/nn/mixer.h"

namespace aft::nn {
namespace {

constexpr int64_t kDim = 32;

/// Peak resident memory of this process in bytes.
double peak() {
  double kilobytes = -1;
  char line[256];
  FILE* status = std::fopen("/proc/self/status", "r");
  while (status && std::fgets(line, sizeof(line), status))
    if (std::strncmp(line, "VmHWM:", 6) == 0) kilobytes = std::atof(line + 6);
  if (status) std::fclose(status);
  return kilobytes * 1024;
}

/// The rise of the peak in units of [T, dim] tensors; -1: failed.
double rise(const MixerOptions& options, int64_t T) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  double tensors = -1;
  if (child == 0) {
    try {
      torch::set_num_threads(1);
      const std::shared_ptr<Mixer> mixer = make_mixer(options);
      // The first call loads code.
      mixer->forward(torch::randn({1, 300, kDim}).requires_grad_())
          .sum()
          .backward();
      const torch::Tensor x = torch::randn({1, T, kDim}).requires_grad_();
      const double before = peak();
      mixer->forward(x).sum().backward();
      if (x.grad().isfinite().all().item<bool>())
        tensors = (peak() - before) / (sizeof(float) * T * kDim);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    const ssize_t written = write(ends[1], &tensors, sizeof(tensors));
    _exit(written == sizeof(tensors) ? 0 : 1);
  }
  close(ends[1]);
  if (read(ends[0], &tensors, sizeof(tensors)) != sizeof(tensors)) tensors = -1;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return tensors;
}

/// A T x T buffer would be T / dim tensors: 256 and 1024, or 128 and 512.
void expect_linear(const std::string& kind, bool causal, int64_t layer = 0) {
  double tensors[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t longest = kind == "attention" ? 16384 : 32768,  // slow
        T = i == 0 ? longest / 4 : longest;
    MixerOptions o;
    o.kind = kind, o.dim = kDim, o.causal = causal, o.max_len = 32768;
    o.columns = 96, o.layer = layer;
    o.values = {{"heads", 2}, {"rank", 8}, {"window", 31}};
    if (kind == "sparse")
      o.values["window"] =
          static_cast<int64_t>(std::sqrt(static_cast<double>(T)));
    tensors[i] = rise(o, T);
  }
  std::printf("%s%s: %.1f and %.1f tensors\n", kind.c_str(),
              causal ? ", causal" : "", tensors[0], tensors[1]);
  EXPECT_GT(tensors[0], 1) << kind;
  EXPECT_GT(tensors[1], 1) << kind;
  EXPECT_LT(tensors[1], 1.3 * tensors[0] + 2) << kind;
  EXPECT_LT(tensors[1], 130) << kind;
}

class Linear : public testing::TestWithParam<const char*> {};

TEST_P(Linear, MemoryInTheLength) {
  for (const bool causal : {true, false}) {
    const auto& kinds = mixer_kinds(causal);
    if (std::find(kinds.begin(), kinds.end(), GetParam()) != kinds.end())
      expect_linear(GetParam(), causal);
  }
  if (std::string(GetParam()) == "sparse") expect_linear("sparse", true, 1);
}

/// The measurement detects a T x T buffer.
TEST(Measure, DetectsQuadraticMemory) {
  MixerOptions o;
  o.kind = "synthesizer", o.dim = kDim, o.max_len = 4096;
  o.values = {{"heads", 2}};
  EXPECT_GT(rise(o, 4096), 130);
}

INSTANTIATE_TEST_SUITE_P(Mixers, Linear,
                         testing::Values("aft-simple", "aft-local", "aft-conv",
                                         "attention", "linear-attention",
                                         "performer", "reformer", "sparse",
                                         "image-local1d", "image-local2d"));

}  // namespace
}  // namespace aft::nn
