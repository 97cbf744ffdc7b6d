// The inner loops of the log-space path; logspace.h has the equations.
#include "aft/kernels/logspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/logspace_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "aft/kernels/math_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

using LogspaceTag = TileTag<double>;
using LogspaceVec = hn::Vec<LogspaceTag>;

inline constexpr double kEmpty = -std::numeric_limits<double>::infinity();

/// sum_i exp(x_i) (n_i, d_i) = exp(m) (n, d).
struct LogSum {
  LogspaceVec m, n, d;

  static HWY_INLINE LogSum Empty() {
    const LogspaceTag tag;
    return {hn::Set(tag, kEmpty), hn::Zero(tag), hn::Zero(tag)};
  }
  static HWY_INLINE LogSum Load(const double* from) {
    const LogspaceTag tag;
    return {hn::Load(tag, from), hn::Load(tag, from + kTile),
            hn::Load(tag, from + 2 * kTile)};
  }
  HWY_INLINE void Store(double* to) const {
    const LogspaceTag tag;
    hn::Store(m, tag, to);
    hn::Store(n, tag, to + kTile);
    hn::Store(d, tag, to + 2 * kTile);
  }
  /// One of the two exponentials exp(m - m') is always 1.
  HWY_INLINE void Add(const LogSum& x) {
    const LogspaceTag tag;
    if (hn::AllTrue(tag, hn::Eq(x.m, hn::Set(tag, kEmpty)))) return;
    const auto rises = hn::Gt(x.m, m);
    // The difference is NaN if both sums are empty.
    const auto gap = hn::IfThenZeroElse(hn::Eq(x.m, m), hn::Sub(x.m, m));
    const auto e = ExpV(tag, hn::Neg(hn::Abs(gap)));
    n = hn::IfThenElse(rises, hn::MulAdd(e, n, x.n), hn::MulAdd(e, x.n, n));
    d = hn::IfThenElse(rises, hn::MulAdd(e, d, x.d), hn::MulAdd(e, x.d, d));
    m = hn::Max(m, x.m);
  }
};

/// Calls f(i) for the vectors of a tile.
template <class F>
HWY_INLINE void ForVectors(const F& f) {
  for (size_t i = 0; i < kTile; i += hn::Lanes(LogspaceTag())) f(i);
}

/// out[i] = sum of the items before i + lo (if before) and after i + hi (if
/// after), for i in [0, rows). item(j, lane) is a LogSum.
template <class Item>
HWY_INLINE void Complement(int64_t items, int64_t rows, int64_t lo, int64_t hi,
                           bool before, bool after, const Item& item,
                           double* out) {
  ForVectors([&](size_t lane) {
    LogSum sum = LogSum::Empty();
    for (int64_t i = 0, next = 0; i < rows; ++i) {
      for (; before && next < std::min(items, i + lo); ++next)
        sum.Add(item(next, lane));
      sum.Store(out + i * kLogSum + lane);
    }
    sum = LogSum::Empty();
    for (int64_t i = rows - 1, next = items - 1; after && i >= 0; --i) {
      for (; next > std::max<int64_t>(-1, i + hi); --next)
        sum.Add(item(next, lane));
      double* to = out + i * kLogSum + lane;
      LogSum both = LogSum::Load(to);
      both.Add(sum);
      both.Store(to);
    }
  });
}

template <class Item>
HWY_INLINE void Total(int64_t items, const Item& item, double* out) {
  ForVectors([&](size_t lane) {
    LogSum sum = LogSum::Empty();
    for (int64_t j = 0; j < items; ++j) sum.Add(item(j, lane));
    sum.Store(out + lane);
  });
}

/// The buffer `outside`: for each row the keys of one line outside of [lo, hi],
/// for each line the lines of a slice outside of reach_y, and for each slice
/// the slices outside of reach_z; then totals of lines and of slices.
template <class Double>
struct OutsideSums {
  OutsideSums(const LogspaceWindow& w, Double* outside)
      : of_rows(outside),
        of_lines(of_rows + w.all_rows() * kLogSum),
        of_slices(of_lines + w.Z * w.Y * kLogSum),
        lines(of_slices + w.Z * kLogSum),
        slices(lines + w.Z * w.Y * kLogSum) {}
  Double *of_rows, *of_lines, *of_slices, *lines, *slices;
};

template <class Item>
HWY_INLINE void SumOutside(const LogspaceWindow& w, const Item& item,
                           double* outside) {
  const OutsideSums<double> to(w, outside);
  const auto stored = [](const double* sums) {
    return [sums](int64_t i, size_t lane) {
      return LogSum::Load(sums + i * kLogSum + lane);
    };
  };
  for (int64_t line = 0; line < w.Z * w.Y; ++line) {
    const auto of_line = [&](int64_t j, size_t lane) {
      return item(line * w.keys + j, lane);
    };
    Complement(w.keys, w.rows, w.lo, w.hi, w.before, w.after, of_line,
               to.of_rows + line * w.rows * kLogSum);
    if (w.Z * w.Y > 1) Total(w.keys, of_line, to.lines + line * kLogSum);
  }
  for (int64_t z = 0; z < w.Z && w.Z * w.Y > 1; ++z) {
    const auto lines = stored(to.lines + z * w.Y * kLogSum);
    Complement(w.Y, w.Y, -w.reach_y, w.reach_y, true, true, lines,
               to.of_lines + z * w.Y * kLogSum);
    Total(w.Y, lines, to.slices + z * kLogSum);
  }
  if (w.Z > 1) {
    Complement(w.Z, w.Z, -w.reach_z, w.reach_z, true, true, stored(to.slices),
               to.of_slices);
  }
}

/// The position of row t on the grid, and the lines in its window.
struct RowLines {
  RowLines(const LogspaceWindow& w, int64_t t)
      : z(t / (w.Y * w.rows)),
        y(t / w.rows % w.Y),
        x(t % w.rows),
        z0(std::max<int64_t>(0, z - w.reach_z)),
        z1(std::min(w.Z, z + w.reach_z + 1)),
        y0(std::max<int64_t>(0, y - w.reach_y)),
        y1(std::min(w.Y, y + w.reach_y + 1)) {}
  int64_t z, y, x, z0, z1, y0, y1;
};

/// Calls f(sum) for the sums that together cover the keys outside of the window
/// of row t.
template <class F>
HWY_INLINE void ForSums(const LogspaceWindow& w, int64_t t,
                        const double* outside, const F& f) {
  const OutsideSums<const double> from(w, outside);
  const RowLines at(w, t);
  if (w.Z > 1) f(from.of_slices + at.z * kLogSum);
  for (int64_t i = at.z0; i < at.z1; ++i) {
    if (w.Y > 1) f(from.of_lines + (i * w.Y + at.y) * kLogSum);
    for (int64_t j = at.y0; j < at.y1; ++j)
      f(from.of_rows + ((i * w.Y + j) * w.rows + at.x) * kLogSum);
  }
}

/// Calls f(key, tap) for the keys in the window of row t that are not padded.
template <class F>
HWY_INLINE void ForKeys(const LogspaceWindow& w, const LogspaceTile& tile,
                        int64_t t, const F& f) {
  const RowLines at(w, t);
  const int64_t first = at.x + w.lo,
                begin = std::clamp<int64_t>(first, 0, w.keys),
                end = std::clamp<int64_t>(first + w.width(), begin, w.keys);
  for (int64_t i = at.z0; i < at.z1; ++i) {
    for (int64_t j = at.y0; j < at.y1; ++j) {
      const int64_t line = (i * w.Y + j) * w.keys;
      const int64_t tap = ((i - at.z + w.reach_z) * (2 * w.reach_y + 1) + j -
                           at.y + w.reach_y) *
                          w.width();
      for (int64_t x = begin; x < end; ++x) {
        if (!(tile.padded && tile.padded[line + x]))
          f(line + x, tap + x - first);
      }
    }
  }
}

template <bool kPerChannel>
HWY_INLINE LogspaceVec Weight(const double* w, int64_t tap, size_t lane) {
  const LogspaceTag tag;
  if constexpr (kPerChannel) return hn::Load(tag, w + tap * kTile + lane);
  return hn::Set(tag, w[tap]);
}

/// k + w, or -infinity (masked) if either is.
HWY_INLINE LogspaceVec Exponent(LogspaceVec k, LogspaceVec w) {
  const LogspaceTag tag;
  const auto empty = hn::Set(tag, kEmpty);
  return hn::IfThenElse(hn::Or(hn::Eq(k, empty), hn::Eq(w, empty)), empty,
                        hn::Add(k, w));
}

void SumKeys(const LogspaceWindow& w, const LogspaceTile& tile,
             double* outside) {
  const LogspaceTag tag;
  SumOutside(
      w,
      [&](int64_t j, size_t lane) {
        const double* key = tile.keys + j * 2 * kTile + lane;
        // A key of NaN has an ordinary exponent, and a NaN weight and value.
        const auto k = hn::Load(tag, key);
        const auto nan = hn::IsNaN(k);
        return LogSum{hn::IfThenZeroElse(nan, k), hn::Load(tag, key + kTile),
                      hn::IfThenElse(nan, k, hn::Set(tag, 1.))};
      },
      outside);
}

void SumRows(const LogspaceWindow& w, const double* rows, double* outside) {
  const LogspaceTag tag;
  SumOutside(
      w,
      [&](int64_t t, size_t lane) {
        const double* row = rows + t * kLogSum + lane;
        const auto a = hn::Load(tag, row);
        return LogSum{
            hn::IfThenElse(hn::Eq(a, hn::Zero(tag)), hn::Set(tag, kEmpty),
                           hn::Neg(hn::Load(tag, row + kTile))),
            hn::Mul(a, hn::Load(tag, row + 2 * kTile)), a};
      },
      outside);
}

template <bool kPerChannel>
HWY_INLINE void RowOf(const LogspaceWindow& w, const LogspaceTile& tile,
                      int64_t t, const double* bias, const double* outside,
                      double* row) {
  const LogspaceTag tag;
  HWY_ALIGN double sums[kTile];
  ForVectors([&](size_t lane) {
    const auto key = [&](int64_t j) {
      return tile.keys + j * 2 * kTile + lane;
    };
    const auto exponent = [&](int64_t j, int64_t tap) {
      return Exponent(hn::Load(tag, key(j)),
                      Weight<kPerChannel>(bias, tap, lane));
    };
    // Two passes, so that nothing is rescaled.
    const auto empty = hn::Set(tag, kEmpty);
    auto m = empty, n = hn::Zero(tag), d = hn::Zero(tag);
    if (outside) {
      ForSums(w, t, outside, [&](const double* s) {
        m = hn::Max(m, hn::Load(tag, s + lane));
      });
    }
    ForKeys(w, tile, t,
            [&](int64_t j, int64_t tap) { m = hn::Max(m, exponent(j, tap)); });
    m = hn::IfThenZeroElse(hn::Eq(m, empty), m);
    if (outside) {
      ForSums(w, t, outside, [&](const double* s) {
        const LogSum x = LogSum::Load(s + lane);
        const auto e = ExpV(tag, hn::Sub(x.m, m));
        n = hn::MulAdd(e, x.n, n);
        d = hn::MulAdd(e, x.d, d);
      });
    }
    ForKeys(w, tile, t, [&](int64_t j, int64_t tap) {
      const auto e = ExpV(tag, hn::Sub(exponent(j, tap), m));
      // Of a masked key, the value may be NaN.
      const auto v = hn::IfThenZeroElse(hn::Eq(e, hn::Zero(tag)),
                                        hn::Load(tag, key(j) + kTile));
      n = hn::MulAdd(e, v, n);
      d = hn::Add(d, e);
    });
    hn::Store(m, tag, row + kTile + lane);
    hn::Store(Ratio(tag, n, d), tag, row + 2 * kTile + lane);
    hn::Store(d, tag, sums + lane);
  });
  for (int c = 0; c < kTile; ++c) row[kTile + c] += std::log(sums[c]);
}

void RowKernel(const LogspaceWindow& w, const LogspaceTile& tile, int64_t t,
               const LogspaceBias& bias, const double* outside, double* row) {
  (bias.per_channel ? RowOf<true> : RowOf<false>)(w, tile, t, bias.w, outside,
                                                  row);
}

template <bool kPerChannel>
HWY_INLINE void RowGradientOf(const LogspaceWindow& w, const LogspaceTile& tile,
                              int64_t t, const double* bias, const double* row,
                              double* grads, double* dw) {
  const LogspaceTag tag;
  const auto add = [&](double* to, LogspaceVec x) {
    hn::Store(hn::Add(hn::Load(tag, to), x), tag, to);
  };
  ForKeys(w, tile, t, [&](int64_t j, int64_t tap) {
    auto sum = hn::Zero(tag);
    ForVectors([&](size_t lane) {
      const double* key = tile.keys + j * 2 * kTile + lane;
      const auto x =
          Exponent(hn::Load(tag, key), Weight<kPerChannel>(bias, tap, lane));
      const auto e = ExpV(tag, hn::Sub(x, hn::Load(tag, row + kTile + lane)));
      // The other factors, and the difference, may be NaN if the key is masked.
      const auto none = hn::Eq(x, hn::Set(tag, kEmpty));
      const auto p =
          hn::IfThenZeroElse(none, hn::Mul(hn::Load(tag, row + lane), e));
      const auto g =
          hn::Mul(p, hn::IfThenZeroElse(
                         none, hn::Sub(hn::Load(tag, key + kTile),
                                       hn::Load(tag, row + 2 * kTile + lane))));
      if (grads) {
        add(grads + j * 2 * kTile + lane, g);
        add(grads + j * 2 * kTile + kTile + lane, p);
      }
      if (kPerChannel && dw) add(dw + tap * kTile + lane, g);
      sum = hn::Add(sum, g);
    });
    if (!kPerChannel && dw) dw[tap] += hn::GetLane(hn::SumOfLanes(tag, sum));
  });
}

void RowGradientKernel(const LogspaceWindow& w, const LogspaceTile& tile,
                       int64_t t, const LogspaceBias& bias, const double* row,
                       double* grads, double* dw) {
  (bias.per_channel ? RowGradientOf<true>
                    : RowGradientOf<false>)(w, tile, t, bias.w, row, grads, dw);
}

/// With exp(m) (C, A) the sum over the rows outside of a key's window of
/// exp(-lse) (a r, a): dv_j += exp(k_j + m) A, dk_j += exp(k_j + m) (v_j A -
/// C).
void OutsideGradient(const LogspaceWindow& w, const LogspaceTile& tile,
                     const double* outside, double* grads) {
  const LogspaceTag tag;
  for (int64_t j = 0; j < w.all_rows(); ++j) {
    if (tile.padded && tile.padded[j]) continue;
    ForVectors([&](size_t lane) {
      LogSum sum = LogSum::Empty();
      ForSums(w, j, outside,
              [&](const double* s) { sum.Add(LogSum::Load(s + lane)); });
      const double* key = tile.keys + j * 2 * kTile + lane;
      double *dk = grads + j * 2 * kTile + lane, *dv = dk + kTile;
      const auto e = ExpV(tag, hn::Add(hn::Load(tag, key), sum.m));
      const auto none = hn::Eq(e, hn::Zero(tag));  // the sums may be NaN
      const auto a = hn::IfThenZeroElse(none, hn::Mul(e, sum.d));
      const auto c = hn::IfThenZeroElse(none, hn::Mul(e, sum.n));
      hn::Store(hn::Add(hn::Load(tag, dv), a), tag, dv);
      hn::Store(hn::Add(hn::Load(tag, dk),
                        hn::MulSub(hn::Load(tag, key + kTile), a, c)),
                tag, dk);
    });
  }
}

const LogspaceKernels& LogspaceTable() {
  static constexpr LogspaceKernels kTable = {
      SumKeys, RowKernel, RowGradientKernel, SumRows, OutsideGradient};
  return kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

HWY_EXPORT(LogspaceTable);

const LogspaceKernels& logspace_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(LogspaceTable)();
}

}  // namespace aft::kernels
#endif
