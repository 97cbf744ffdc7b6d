#include "bench/machine.h"

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "aft/base/counted.h"
#include "aft/kernels/kernels.h"

namespace aft::bench {
namespace {

// Vectors of GCC and Clang; whole registers of the function's target.
typedef float Float4 __attribute__((vector_size(16)));
#if defined(__x86_64__)
typedef float Float8 __attribute__((vector_size(32)));
typedef float Float16 __attribute__((vector_size(64)));
#endif

/// n rounds of multiply-adds in kChains independent chains: enough of them to
/// hide the latency of two units, few enough to stay in registers.
template <class Vector, int kChains>
__attribute__((always_inline)) inline float multiply_add(int64_t n) {
  const Vector zero = {}, scale = zero + 0.9999f, step = zero + 1e-4f;
  Vector sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = step * static_cast<float>(c + 1);
  for (int64_t i = 0; i < n; ++i) {
    for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * scale + step;
  }
  for (int c = 1; c < kChains; ++c) sums[0] += sums[c];
  return sums[0][0];
}

struct MultiplyAdd {
  float (*run)(int64_t n);
  double flops_per_round;
};

constexpr double flops(int lanes, int chains) { return 2. * lanes * chains; }

float run_baseline(int64_t n) { return multiply_add<Float4, 8>(n); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float run_avx2(int64_t n) {
  return multiply_add<Float8, 12>(n);
}
__attribute__((target("avx512f"))) float run_avx512(int64_t n) {
  return multiply_add<Float16, 12>(n);
}
#endif

MultiplyAdd choose_multiply_add() {
#if defined(__x86_64__)
  if (isa_name() == "AVX-512") return {run_avx512, flops(16, 12)};
  if (isa_name() == "AVX2") return {run_avx2, flops(8, 12)};
#endif
  return {run_baseline, flops(4, 8)};
}

/// Seconds of the fastest of `runs` calls of f(thread) on all threads. Creates
/// new threads, to be independent of the measured code; this takes
/// microseconds, and a run takes milliseconds.
template <class F>
double fastest(int runs, const F& f) {
  double best = 1e30;
  for (int i = 0; i <= runs; ++i) {
    std::vector<std::thread> threads;
    const auto start = std::chrono::steady_clock::now();
    for (int t = 1; t < at::get_num_threads(); ++t) threads.emplace_back(f, t);
    f(0);
    for (std::thread& t : threads) t.join();
    const std::chrono::duration<double> d =
        std::chrono::steady_clock::now() - start;
    if (i > 0) best = std::min(best, d.count());  // the first one warms up
  }
  return best;
}

}  // namespace

Machine measure_machine(bool quick) {
  const auto threads = static_cast<size_t>(at::get_num_threads());
  Machine machine;
  {
    const size_t each = (size_t{quick ? 16u : 128u} << 20) / threads;
    std::vector<char> from(each * threads, 1), to(each * threads, 2);
    const double s = fastest(7, [&](int64_t t) {
      const size_t at = static_cast<size_t>(t) * each;
      memcpy(to.data() + at, from.data() + at, each);
    });
    machine.bytes = 2. * static_cast<double>(each * threads) / s;
  }
  {
    const int64_t rounds = (quick ? 1 : 8) << 19;
    const MultiplyAdd peak = choose_multiply_add();
    std::vector<float> results(threads * 64);  // a cache line or more apart
    const double s = fastest(5, [&](int64_t t) {
      results[static_cast<size_t>(t) * 64] = peak.run(rounds);
    });
    machine.flops = static_cast<double>(threads) * static_cast<double>(rounds) *
                    peak.flops_per_round / s;
  }
  {
    constexpr int64_t kValues = 2048;  // 8 kB in, 8 kB out
    const int64_t rounds = quick ? 1024 : 8192;
    std::vector<float> x(threads * kValues), y(threads * kValues);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 17) / 4 - 2;
    }
    const auto exp = kernels::simple_kernels<float>().exp;
    const double s = fastest(5, [&](int64_t t) {
      for (int64_t i = 0; i < rounds; ++i) {
        exp(x.data() + t * kValues, y.data() + t * kValues, kValues);
      }
    });
    machine.exps = static_cast<double>(threads) * kValues *
                   static_cast<double>(rounds) / s;
  }
  return machine;
}

double bound_ms(const Machine& machine, const Work& work) {
  return 1e3 * std::max({work.bytes / machine.bytes, work.flops / machine.flops,
                         work.exps / machine.exps});
}

double sum_ms(const Machine& machine, const Work& work) {
  return 1e3 * (work.bytes / machine.bytes + work.flops / machine.flops +
                work.exps / machine.exps);
}

std::string isa_name() {
  const std::string name = kernels::target_name();
  return name.compare(0, 4, "AVX3") == 0 ? "AVX-512" : name;
}

void limit_to_avx2() {
  constexpr const char* kRestarted = "AFT_BENCH_ISA";
  if (std::getenv(kRestarted)) {
    if (!kernels::use_target("AVX2"))
      throw std::runtime_error("--isa avx2: this processor has no AVX2");
    return;
  }
  // Libraries read these when they are loaded.
  for (const auto& [name, value] : {std::pair{kRestarted, "avx2"},
                                    {"ATEN_CPU_CAPABILITY", "avx2"},
                                    {"ONEDNN_MAX_CPU_ISA", "AVX2"},
                                    {"DNNL_MAX_CPU_ISA", "AVX2"},
                                    {"MKL_ENABLE_INSTRUCTIONS", "AVX2"},
                                    {"OPENBLAS_CORETYPE", "Haswell"}})
    setenv(name, value, 1);
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
  throw std::runtime_error("--isa avx2: the program cannot be restarted");
}

std::string describe(const Machine& machine) {
  char text[160];
  snprintf(text, sizeof(text),
           "this machine, %s, %s, torch %s: copy %.1f GB/s, multiply-add "
           "%.0f GFLOP/s, exp %.2f G/s",
           base::counted(at::get_num_threads(), "thread").c_str(),
           isa_name().c_str(), TORCH_VERSION, machine.bytes / 1e9,
           machine.flops / 1e9, machine.exps / 1e9);
  return text;
}

}  // namespace aft::bench
