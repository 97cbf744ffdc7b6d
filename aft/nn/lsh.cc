#include "aft/nn/lsh.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "aft/ops/autocast.h"

namespace aft::nn {
namespace {

using at::Tensor;

constexpr int64_t kBase = 64;
/// Elements of q R computed at once, so that they stay in the cache.
constexpr int64_t kProducts = 1 << 18;
/// Minimum number of rows per thread.
constexpr int64_t kGrain = 512;

/// Calls f(y, x, d) for each row y of `to` and the row x of `from` given by
/// index; x is null for -1.
template <class F>
void each_row(const Tensor& to, const Tensor& from, const Tensor& index,
              const F& f) {
  const int64_t d = from.size(1);
  const Tensor dense = index.contiguous();
  const int64_t* at = dense.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(from.scalar_type(), "aft::reformer", [&] {
    scalar_t* y = to.data_ptr<scalar_t>();
    const scalar_t* x = from.data_ptr<scalar_t>();
    at::parallel_for(0, index.size(0), kGrain, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) f(y + i * d, at[i] < 0 ? nullptr : x + at[i] * d, d);
    });
  });
}

}  // namespace

int64_t Digits::buckets() const {
  int64_t product = 1;
  for (int64_t i = 0; i < count; ++i) product *= base;
  return product;
}

Digits digits_for(int64_t buckets) {
  Digits digits{kBase, 1};
  while (digits.buckets() < buckets) ++digits.count;
  if (digits.count == 1) return {buckets, 1};
  for (digits.base = 2; digits.buckets() < buckets;) digits.base += 2;
  return digits;
}

Tensor hash(const Tensor& q, const Tensor& rotations, const Digits& digits) {
  const ops::NoAutocast no_autocast;
  const int64_t n = q.size(0), half = digits.base / 2;
  if (!rotations.defined()) return at::zeros({1, n}, at::kInt);
  const int64_t rounds = rotations.size(0), width = rounds * rotations.size(2);
  const Tensor out = at::empty({rounds, n}, at::kInt);
  const Tensor all = rotations.transpose(0, 1).reshape({-1, width});
  const int64_t most = std::max<int64_t>(kProducts / width, 1);
  for (int64_t i = 0; i < n; i += most) {
    const int64_t count = std::min(most, n - i);
    const Tensor x = at::mm(q.narrow(0, i, count), all).cpu();
    int32_t* to = out.data_ptr<int32_t>() + i;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::reformer", [&] {
      const scalar_t* from = x.data_ptr<scalar_t>();
      at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
        const scalar_t* a = from + begin * width;
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t r = 0; r < rounds; ++r) {
            int64_t bucket = 0, unit = 1;
            for (int64_t digit = 0; digit < digits.count; ++digit, a += half) {
              int64_t best = 0;
              for (int64_t j = 1; j < half; ++j)
                if (std::abs(a[j]) > std::abs(a[best])) best = j;
              bucket += (a[best] < 0 ? best + half : best) * unit;
              unit *= digits.base;
            }
            to[r * n + row] = static_cast<int32_t>(bucket);
          }
        }
      });
    });
  }
  return out;
}

Windows windows_of(const Tensor& buckets, int64_t T, int64_t heads,
                   int64_t count, int64_t chunk, at::Device device) {
  const int64_t rows = buckets.size(0), N = rows / T, c = chunk;
  const int32_t* bucket = buckets.data_ptr<int32_t>();
  std::vector<int32_t> length(static_cast<size_t>(N * count)),
      rank(static_cast<size_t>(rows));
  // Calls f(row, list) for all rows that are in a bucket, in order of t within
  // each list.
  const auto each = [&](const auto& f) {
    at::parallel_for(0, N, 1, [&](int64_t n, int64_t end) {
      for (; n < end; ++n) {
        int64_t row = n / heads * heads * T + n % heads;
        for (int64_t t = 0; t < T; ++t, row += heads)
          if (bucket[row] >= 0) f(row, n * count + bucket[row]);
      }
    });
  };
  each([&](int64_t row, int64_t i) { rank[row] = length[i]++; });
  Windows w;
  w.chunk = c;
  std::vector<int64_t> first(length.size()), second(length.size());
  for (size_t i = 0; i < length.size(); ++i) {
    first[i] = w.alone, second[i] = w.pairs;
    w.alone += length[i] > 0;
    w.pairs += std::max<int64_t>(length[i] - 1, 0) / c;
  }
  const int64_t start = w.alone * c;
  w.keys = at::full({start + w.pairs * 2 * c}, -1, at::kLong);
  for (Tensor* x : {&w.query, &w.own, &w.previous})
    *x = at::full({rows}, -1, at::kLong);
  int64_t *keys = w.keys.data_ptr<int64_t>(),
          *query = w.query.data_ptr<int64_t>(),
          *own = w.own.data_ptr<int64_t>(),
          *previous = w.previous.data_ptr<int64_t>();
  each([&](int64_t row, int64_t i) {
    const int64_t k = rank[row] / c, at = rank[row] % c, pair = second[i] + k;
    query[row] = own[row] = first[i] * c + at;
    if (k > 0) {
      query[row] = start + (pair - 1) * c + at;
      own[row] = start + (pair - 1) * 2 * c + c + at;
    }
    keys[own[row]] = row;
    if ((k + 1) * c < length[i]) {
      previous[row] = start + pair * 2 * c + at;
      keys[previous[row]] = row;
    }
  });
  for (Tensor* x : {&w.keys, &w.query, &w.own, &w.previous}) *x = x->to(device);
  return w;
}

// index_select is several times slower for rows this short.
Tensor take_rows(const Tensor& x, const Tensor& index) {
  if (!x.is_cpu())
    return x.index_select(0, index.clamp_min(0))
        .masked_fill_(index.lt(0).unsqueeze(1), 0);
  const Tensor y = at::empty({index.size(0), x.size(1)}, x.options());
  each_row(y, x, index, [](auto* to, const auto* from, int64_t d) {
    if (from)
      std::copy(from, from + d, to);
    else
      std::fill(to, to + d, 0);
  });
  return y;
}

void add_rows(const Tensor& y, const Tensor& x, const Tensor& index) {
  if (!x.is_cpu()) {
    y.add_(take_rows(x, index));
    return;
  }
  each_row(y, x, index, [](auto* to, const auto* from, int64_t d) {
    for (int64_t i = 0; from && i < d; ++i) to[i] += from[i];
  });
}

}  // namespace aft::nn
