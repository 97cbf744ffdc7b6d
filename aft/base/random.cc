#include "aft/base/random.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "aft/base/error.h"

namespace aft::base {
namespace {

void check(bool good, const std::string& expected, double got) {
  if (!good) throw Error(expected + ", got " + std::to_string(got));
}

}  // namespace

uint64_t hash_bytes(uint64_t before, const void* data, size_t size) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  uint64_t hash = before;
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at + i, std::min(sizeof(word), size - i));
    hash = mix(hash ^ word, 0);
  }
  return hash;
}

// Scrambles the seed. Otherwise nearby seeds could start at different points of
// the same sequence.
Random::Random(uint64_t seed) : state_(scramble(seed + kSplitMixStep)) {}

uint64_t Random::next() { return scramble(state_ += kSplitMixStep); }

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Random::uniform(double low, double high) {
  return low + (high - low) * uniform();
}

double Random::normal() {  // Marsaglia's polar method
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  double x, y, square;
  do {
    x = uniform(-1, 1);
    y = uniform(-1, 1);
    square = x * x + y * y;
  } while (square >= 1 || square == 0);
  const double scale = std::sqrt(-2 * std::log(square) / square);
  spare_ = y * scale;
  has_spare_ = true;
  return x * scale;
}

int64_t Random::below(int64_t n) {
  check(n >= 1, "Random::below: n must be at least 1", static_cast<double>(n));
  const auto size = static_cast<uint64_t>(n);
  // Reject the first 2^64 mod n values, which would favour small results.
  const uint64_t surplus = -size % size;
  uint64_t v;
  do {
    v = next();
  } while (v < surplus);
  return static_cast<int64_t>(v % size);
}

// Marsaglia and Tsang's method. For a < 1 it draws with a + 1 and multiplies by
// U^(1/a). Returns the logarithm, because most values underflow for small a
// such as 0.01.
double Random::log_gamma_variate(double a) {
  double lowered = 0;
  if (a < 1) {
    lowered = std::log(1 - uniform()) / a;
    a += 1;
  }
  const double d = a - 1.0 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal();
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double log_v = 3 * std::log(root);
    const double v = root * root * root;
    if (std::log(1 - uniform()) < 0.5 * x * x + d * (1 - v + log_v)) {
      return std::log(d) + log_v + lowered;
    }
  }
}

double Random::beta(double a, double b) {
  for (const double v : {a, b}) {
    check(v >= 1e-300 && v <= 1e300,
          "Random::beta: a and b must be in [1e-300, 1e300]", v);
  }
  const double x = log_gamma_variate(a), y = log_gamma_variate(b);
  return 1 / (1 + std::exp(y - x));
}

}  // namespace aft::base
