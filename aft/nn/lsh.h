// Locality-sensitive hashing: assigns vectors to buckets, and groups the rows
// of each bucket into attention windows.
#pragma once

#include <ATen/core/Tensor.h>

namespace aft::nn {

/// A bucket index consists of `count` digits in base `base`, each hashed
/// separately.
struct Digits {
  int64_t base = 1, count = 1;  ///< base is even, or 1: no hashing
  /// base ^ count.
  int64_t buckets() const;
};
/// Returns the digits for `buckets` (even or 1) buckets, or slightly more. The
/// base is at most 64, so that hashing costs O(log buckets). A single digit
/// would cost O(buckets), hence O(T^2) for a sequence.
Digits digits_for(int64_t buckets);

/// Returns the buckets of the rows q [n, d]: int [rounds, n], on the CPU.
/// rotations R [rounds, d, count base / 2] is undefined if there is one bucket.
/// A digit is argmax [q R; -q R] over its base / 2 columns of R; the lowest
/// digit comes first.
at::Tensor hash(const at::Tensor& q, const at::Tensor& rotations,
                const Digits& digits);

/// Groups the rows of several sequences and heads, row = (b T + t) heads + h,
/// by bucket. The rows of each sequence, head and bucket are cut into chunks in
/// order of t. The first chunk forms a window with its own keys only. Each
/// later chunk forms a window with the keys of the previous chunk followed by
/// its own. Only the last chunks may be partial. -1 marks an empty slot, or a
/// row that has no slot.
struct Windows {
  int64_t chunk = 1;
  int64_t alone = 0, pairs = 0;  ///< windows of both kinds, in this order
  at::Tensor keys;           ///< [slots]: the row in each slot of the windows
  at::Tensor query;          ///< [rows]: slot of the row among the chunks
  at::Tensor own, previous;  ///< [rows]: slots of the row in the windows

  int64_t queries() const { return (alone + pairs) * chunk; }
};
/// buckets: int [rows], on the CPU; -1 for a row in no bucket.
Windows windows_of(const at::Tensor& buckets, int64_t T, int64_t heads,
                   int64_t count, int64_t chunk, at::Device device);

/// Gathers rows of x [rows, d]; index -1 gives zeros.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& index);
/// y += take_rows(x, index).
void add_rows(const at::Tensor& y, const at::Tensor& x,
              const at::Tensor& index);

}  // namespace aft::nn
