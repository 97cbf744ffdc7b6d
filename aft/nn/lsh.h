// Locality-sensitive hashing: the buckets of vectors, and the windows in which
// those of one bucket stand together.
#pragma once

#include <ATen/core/Tensor.h>

namespace aft::nn {

/// Buckets are numbers of some digits, each hashed by itself.
struct Digits {
  int64_t base = 1, count = 1;  ///< base even, or 1: no hashing
  /// base ^ count.
  int64_t buckets() const;
};
/// Digits for `buckets` buckets, even or 1, or some more. No base is over 64:
/// hashing costs O(log buckets), where one digit would cost O(buckets), and so
/// a sequence O(T^2).
Digits digits_for(int64_t buckets);

/// The buckets of rows q [n, d]: int [rounds, n], on the CPU. rotations R
/// [rounds, d, count base / 2], or undefined for one bucket: a digit is
/// argmax [q R; -q R] over its base / 2 columns of R, the lowest first.
at::Tensor hash(const at::Tensor& q, const at::Tensor& rotations,
                const Digits& digits);

/// Rows of several sequences and heads, row = (b T + t) heads + h, by their
/// buckets. Of each sequence, head and bucket, rows are cut into chunks in the
/// order of time. The first chunk is a window of its own keys alone; each later
/// one is a window of the previous chunk's keys, then its own. Only last chunks
/// are not full. Nothing is in the place of a row where a number is -1.
struct Windows {
  int64_t chunk = 1;
  int64_t alone = 0, pairs = 0;  ///< windows of both kinds, in this order
  at::Tensor keys;               ///< [slots]: the row in each slot of them
  at::Tensor query;              ///< [rows]: its slot among the chunks
  at::Tensor own, previous;      ///< [rows]: its slots in windows

  int64_t queries() const { return (alone + pairs) * chunk; }
};
/// buckets: int [rows], on the CPU; -1: in none.
Windows windows_of(const at::Tensor& buckets, int64_t T, int64_t heads,
                   int64_t count, int64_t chunk, at::Device device);

/// Those rows of x [rows, d]; 0 for -1.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& index);
/// Adds them to y.
void add_rows(const at::Tensor& y, const at::Tensor& x,
              const at::Tensor& index);

}  // namespace aft::nn
