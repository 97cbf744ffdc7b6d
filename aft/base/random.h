// Hash functions and pseudo-random numbers that depend only on their seed. The
// integers are identical on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aft::base {

/// The increment of SplitMix64's counter.
inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15u;

/// The multiplications of SplitMix64's finaliser. Only the high bits of the
/// result are well mixed.
constexpr uint64_t scramble_high(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  return (x ^ (x >> 27)) * 0x94D049BB133111EBu;
}

/// The finaliser of SplitMix64: a bijection in which every bit of x affects
/// every bit of the result.
constexpr uint64_t scramble(uint64_t x) {
  x = scramble_high(x);
  return x ^ (x >> 31);
}

/// Derives an independent seed from a seed a and a stream number b.
constexpr uint64_t mix(uint64_t a, uint64_t b) {
  return scramble(a + kSplitMixStep * (b + 1));
}

/// Extends the hash `before` by `size` bytes. Not cryptographic.
uint64_t hash_bytes(uint64_t before, const void* data, size_t size);

/// A SplitMix64 generator. next, uniform and below return identical values on
/// every machine; normal and beta may differ in the last bits, which depend on
/// the platform's log and exp. Adjacent seeds give independent sequences. Not
/// thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed);

  uint64_t next();
  double uniform();                         ///< [0, 1), a multiple of 2^-53
  double uniform(double low, double high);  ///< low + (high - low) uniform()
  double normal();                          ///< mean 0, variance 1
  int64_t below(int64_t n);         ///< uniform in [0, n - 1]; needs n >= 1
  double beta(double a, double b);  ///< a and b in [1e-300, 1e300]

 private:
  double log_gamma_variate(double a);

  uint64_t state_;
  double spare_ = 0;  // normal() generates two values at a time
  bool has_spare_ = false;
};

}  // namespace aft::base
