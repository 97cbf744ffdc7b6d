// The table of shapes shared by all operator tests, and input data: random
// values that are the same on every machine, hostile keys and biases, padding
// masks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace aft::testing {

/// A shape of simple, full and local: simple reads neither window nor rank,
/// full reads the rank (of u and v_pos), local both.
struct Case {
  const char* name;  ///< letters, digits and _ only; part of test names
  int64_t B, Tq, Tk, D;
  int64_t window;  ///< of local; 0 is simple
  int64_t rank;
};

/// A shape of conv: T is the product of the grid, H divides D.
struct ConvCase {
  const char* name;
  int64_t B;
  std::vector<int64_t> grid, kernel;
  int64_t D, H;
  bool causal;

  int64_t T() const { return product(grid); }
  int64_t taps() const { return product(kernel); }
  static int64_t product(const std::vector<int64_t>& sizes) {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return n;
  }
};

/// The options each case is run with. Padding comes from padding_mask below.
struct Mode {
  const char* name;
  bool causal, padded, gated;
};

inline const std::vector<Case>& cases() {
  static const std::vector<Case> table = {
      // name              B  Tq  Tk  D   window rank
      {"one", 1, 1, 1, 1, 0, 1},
      {"one_position", 2, 1, 1, 17, 1, 3},
      {"one_channel", 2, 13, 13, 1, 2, 1},
      {"two_positions", 1, 2, 2, 3, 1, 1},
      {"simple_7x3", 3, 7, 7, 3, 0, 1},
      {"self_only_7x5", 2, 7, 7, 5, 1, 3},
      {"window_2_13x8", 2, 13, 13, 8, 2, 3},
      {"window_5_37x17", 2, 37, 37, 17, 5, 16},
      {"window_5_97x33", 1, 97, 97, 33, 5, 3},
      {"window_T_13x24", 2, 13, 13, 24, 13, 16},
      {"window_T_less_1_7x24", 2, 7, 7, 24, 6, 3},
      {"window_beyond_T_7x33", 2, 7, 7, 33, 20, 16},
      {"window_beyond_T_37x3", 1, 37, 37, 3, 100, 1},
      {"window_T_97x5", 1, 97, 97, 5, 97, 16},
      {"simple_97x8", 2, 97, 97, 8, 0, 3},
      {"vector_64x16", 1, 64, 64, 16, 8, 16},
      {"fewer_queries_7_13x5", 2, 7, 13, 5, 2, 3},
      {"more_queries_13_7x8", 2, 13, 7, 8, 5, 3},
      {"one_query_1_37x17", 2, 1, 37, 17, 5, 1},
      {"one_key_37_1x3", 2, 37, 1, 3, 2, 3},
      {"far_queries_97_13x24", 1, 97, 13, 24, 5, 16},
      {"window_all_13_37x33", 1, 13, 37, 33, 37, 16},
  };
  return table;
}

inline const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> table = {
      // name         B  grid  kernel  D   H   causal
      {"one", 1, {1}, {1}, 1, 1, false},
      {"one_causal", 2, {1}, {4}, 3, 1, true},
      {"1d_7_k3", 2, {7}, {3}, 3, 3, false},
      {"1d_13_k1", 2, {13}, {1}, 8, 2, false},
      {"1d_37_k5", 2, {37}, {5}, 17, 17, false},
      {"1d_7_k21", 2, {7}, {21}, 24, 2, false},
      {"1d_97_k31_one_head", 1, {97}, {31}, 5, 1, false},
      {"1d_causal_13_k1", 2, {13}, {1}, 5, 5, true},
      {"1d_causal_37_k4", 2, {37}, {4}, 8, 2, true},
      {"1d_causal_97_k8", 1, {97}, {8}, 33, 33, true},
      {"1d_causal_7_k12", 2, {7}, {12}, 24, 1, true},
      {"2d_5x7_k3x3", 2, {5, 7}, {3, 3}, 8, 8, false},
      {"2d_4x3_k3x1", 2, {4, 3}, {3, 1}, 6, 2, false},
      {"2d_3x5_k7x9", 1, {3, 5}, {7, 9}, 24, 24, false},
      {"2d_1x13_k5x3", 2, {1, 13}, {5, 3}, 17, 1, false},
      {"2d_13x1_k3x5", 1, {13, 1}, {3, 5}, 33, 3, false},
      {"2d_14x14_k11x11", 1, {14, 14}, {11, 11}, 16, 2, false},
      {"3d_3x4x5_k3x3x3", 1, {3, 4, 5}, {3, 3, 3}, 8, 2, false},
      {"3d_2x3x2_k5x1x3", 2, {2, 3, 2}, {5, 1, 3}, 5, 5, false},
      {"3d_2x2x3_k7x5x9", 1, {2, 2, 3}, {7, 5, 9}, 24, 1, false},
  };
  return table;
}

inline const std::vector<Mode>& modes() {
  static const std::vector<Mode> table = {
      {"plain", false, false, true},
      {"causal", true, false, true},
      {"padded", false, true, true},
      {"causal_padded", true, true, true},
      {"no_query", false, false, false},
      {"causal_no_query", true, false, false},
  };
  return table;
}

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name << " (B " << c.B << ", Tq " << c.Tq << ", Tk " << c.Tk
             << ", D " << c.D << ", window " << c.window << ", rank " << c.rank
             << ")";
}

inline std::ostream& operator<<(std::ostream& out, const ConvCase& c) {
  return out << c.name << " (B " << c.B << ", T " << c.T() << ", D " << c.D
             << ", H " << c.H << (c.causal ? ", causal)" : ")");
}

inline std::ostream& operator<<(std::ostream& out, const Mode& m) {
  return out << m.name;
}

/// Normal values by the Box-Muller method on std::mt19937_64, whose sequence is
/// standardised; std::normal_distribution differs between libraries. Values are
/// rounded to float, so that a float kernel and the double oracle have the same
/// input.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// In [0, n).
  int64_t below(int64_t n) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n));
  }

  /// In (0, 1].
  double uniform() {
    return (static_cast<double>(engine_() >> 11) + 1) * 0x1p-53;
  }

  double normal() {
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return static_cast<float>(radius * std::cos(kTwoPi * uniform()));
  }

  std::vector<double> normals(int64_t n, double scale = 1) {
    std::vector<double> x(n);
    for (double& value : x) value = static_cast<float>(scale * normal());
    return x;
  }

 private:
  std::mt19937_64 engine_;
};

/// Replaces about one in `every` elements of x, at least one, by normal values
/// around `height`.
inline void put_spikes(Random& random, std::vector<double>& x, double height,
                       int64_t every = 16) {
  const int64_t n = static_cast<int64_t>(x.size());
  if (n == 0) return;
  for (int64_t i = 0; i < n / every + 1; ++i) {
    x[random.below(n)] = static_cast<float>(height + random.normal());
  }
}

/// The key spikes that every operator must handle, one at a time.
inline const std::vector<double>& spike_heights() {
  static const std::vector<double> heights = {95, 120, 1e4, -1e4};
  return heights;
}

/// n normal keys with spikes of one height.
inline std::vector<double> spiked_keys(Random& random, int64_t n,
                                       double height) {
  std::vector<double> k = random.normals(n);
  put_spikes(random, k, height);
  return k;
}

/// n normal keys with spikes of all heights.
inline std::vector<double> hostile_keys(Random& random, int64_t n) {
  std::vector<double> k = random.normals(n);
  for (double height : spike_heights()) put_spikes(random, k, height, 32);
  return k;
}

/// n normal biases, some of them around +-1e3.
inline std::vector<double> hostile_biases(Random& random, int64_t n) {
  std::vector<double> w = random.normals(n);
  put_spikes(random, w, 1e3, 12);
  put_spikes(random, w, -1e3, 12);
  return w;
}

/// [B, T], 1 = padded. Row 0 has padding at random places, so that the key of
/// position 0 is missing in about half of the seeds; row 1 is padded at its end
/// only; row 2 not at all; and so on in turn. Every row keeps at least one key.
inline std::vector<uint8_t> padding_mask(Random& random, int64_t B, int64_t T) {
  std::vector<uint8_t> padded(B * T, 0);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t keep = random.below(T);
    const int64_t length = 1 + random.below(T);
    for (int64_t j = 0; j < T; ++j) {
      const bool scattered = random.below(2) == 1;
      if (b % 3 == 0) padded[b * T + j] = scattered && j != keep;
      if (b % 3 == 1) padded[b * T + j] = j >= length;
    }
  }
  return padded;
}

/// max |got - want| / max |want|, where the divisor is at least `floor`:
/// gradients of a softmax over one key are 0 except for rounding, and are
/// compared with the size of their summands. Infinity if any value is not
/// finite.
template <class T>
double relative_error(const T* got, const double* want, int64_t n,
                      double floor = 0) {
  double difference = 0, scale = floor;
  for (int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(got[i]);
    if (!std::isfinite(x) || !std::isfinite(want[i])) {
      return std::numeric_limits<double>::infinity();
    }
    difference = std::max(difference, std::abs(x - want[i]));
    scale = std::max(scale, std::abs(want[i]));
  }
  return scale > 0 ? difference / scale : difference;
}

template <class T>
double relative_error(const std::vector<T>& got,
                      const std::vector<double>& want, double floor = 0) {
  if (got.size() != want.size()) {
    return std::numeric_limits<double>::infinity();
  }
  return relative_error(got.data(), want.data(),
                        static_cast<int64_t>(want.size()), floor);
}

}  // namespace aft::testing
