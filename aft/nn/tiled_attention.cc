#include "aft/nn/tiled_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "aft/nn/heads.h"
#include "aft/ops/common.h"
#include "aft/ops/function.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {
namespace {

using at::Tensor;

/// Scores computed at once: on a CPU as many as stay in the cache with their
/// copies, on other devices as many as keep them busy.
constexpr int64_t kTileScores = 1 << 16, kDeviceTileScores = 1 << 24;

/// Part of a tile: sequences [n, n + count) and, if its rows are apart, rows
/// [row, row + rows).
struct TilePart {
  const Tile& tile;
  int64_t n, count, row, rows;

  /// x [N, T, d] to [count, rows, columns, d], as a view.
  Tensor view(const Tensor& x, const Span& span) const {
    const int64_t step = span.step * x.stride(1);
    return x.as_strided(
        {count, tile.apart ? rows : span.rows, span.columns, x.size(2)},
        {x.stride(0), step, span.inner * x.stride(1), x.stride(2)},
        x.storage_offset() + n * x.stride(0) + span.first * x.stride(1) +
            row * step);
  }
  /// Calls f(piece, span) for each span and the corresponding piece of
  /// contiguous y [count rows, positions, d]; the piece has the shape of the
  /// span's view.
  template <class F>
  void each(const Tensor& y, const std::vector<Span>& spans, const F& f) const {
    const Tensor parts = y.view({count, -1, y.size(1), y.size(2)});
    int64_t at = 0;
    for (const Span& span : spans) {
      const int64_t size = tile.apart ? span.columns : span.size();
      f(parts.narrow(2, at, size).view({count, -1, span.columns, y.size(2)}),
        span);
      at += size;
    }
  }
  /// x [N, T, d] at the spans as [count, positions, d], as a view; undefined
  /// if they are not one run of positions.
  Tensor run(const Tensor& x, const std::vector<Span>& spans) const {
    if (tile.apart || spans.size() != 1 || spans[0].rows != 1 ||
        spans[0].inner != 1)
      return Tensor();
    return x.narrow(0, n, count).narrow(1, spans[0].first, spans[0].columns);
  }
  /// Gathers x [N, T, d] at the spans, as [count rows, positions, d]; a view if
  /// possible.
  Tensor take(const Tensor& x, const std::vector<Span>& spans) const {
    Tensor direct = run(x, spans);
    if (direct.defined()) return direct;
    int64_t size = 0;
    for (const Span& span : spans)
      size += tile.apart ? span.columns : span.size();
    const Tensor y = at::empty(
        {count * (tile.apart ? rows : 1), size, x.size(2)}, x.options());
    each(y, spans, [&](const Tensor& piece, const Span& span) {
      piece.copy_(view(x, span));
    });
    return y;
  }
  /// x at the queries = a b.
  void put(const Tensor& x, const Tensor& a, const Tensor& b) const {
    Tensor direct = run(x, {tile.q});
    if (direct.defined()) {
      at::bmm_out(direct, a, b);
      return;
    }
    view(x, tile.q).copy_(
        at::bmm(a, b).view({count, -1, tile.q.columns, x.size(2)}));
  }
  /// x at the keys += a b.
  void add(const Tensor& x, const Tensor& a, const Tensor& b) const {
    Tensor direct = run(x, tile.k);
    if (direct.defined()) {
      direct.baddbmm_(a, b);
      return;
    }
    each(at::bmm(a, b), tile.k, [&](const Tensor& piece, const Span& span) {
      view(x, span).add_(piece);
    });
  }

  /// The attention weights of the queries. padded: [N, T, 1] or undefined.
  Tensor weights(const Tensor& q, const Tensor& k, const Tensor& padded) const {
    const Tensor scores = at::bmm(q, k.transpose(1, 2));
    Tensor gone;
    if (padded.defined()) gone = take(padded, tile.k).transpose(1, 2);
    const auto hide = [&](const Tensor& x, double value) {
      if (tile.hidden.defined()) {
        const int64_t n = tile.hidden.size(1);
        x.narrow(2, x.size(2) - n, n).masked_fill_(tile.hidden, value);
      }
      if (gone.defined()) x.masked_fill_(gone, value);
    };
    hide(scores, -std::numeric_limits<double>::infinity());
    const Tensor w = ops::softmax(scores);
    if (gone.defined()) hide(w, 0);  // all keys of a row may be masked
    return w;
  }
};

/// Calls f(part) for all parts of the tiles of N sequences. Each thread
/// processes whole sequences, so that no two threads add to the same key, and
/// small products need no inner threads.
template <class F>
void each_part(const std::vector<Tile>& tiles, int64_t N, bool cpu,
               const F& f) {
  const int64_t most = cpu ? kTileScores : kDeviceTileScores;
  const auto run = [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (const Tile& tile : tiles) {
      int64_t size = tile.apart ? tile.q.columns : tile.q.size(), keys = 0;
      for (const Span& span : tile.k)
        keys += tile.apart ? span.columns : span.size();
      size = std::max<int64_t>(size * keys, 1);
      const int64_t all = tile.apart ? tile.q.rows : 1;
      const int64_t rows = std::min(std::max<int64_t>(most / size, 1), all);
      const int64_t count = std::max<int64_t>(most / (size * rows), 1);
      for (int64_t n = begin; n < end; n += count)
        for (int64_t row = 0; row < all; row += rows)
          f(TilePart{tile, n, std::min(count, end - n), row,
                     std::min(rows, all - row)});
    }
  };
  if (cpu && N >= at::get_num_threads())
    at::parallel_for(0, N, 1, run);
  else
    run(0, N);
}

/// Passes tiles from forward to backward, as a capsule.
struct Plan : torch::CustomClassHolder {
  explicit Plan(std::vector<Tile> tiles) : tiles(std::move(tiles)) {}
  std::vector<Tile> tiles;
};

struct AttendTiles {
  static constexpr char kName[] = "attend_tiles";

  static Tensor forward(torch::autograd::AutogradContext* ctx,
                        const Tensor& qkv, int64_t heads,
                        const ops::OptionalTensor& mask,
                        const c10::intrusive_ptr<Plan>& plan) {
    const int64_t B = qkv.size(0), T = qkv.size(1), d = qkv.size(2) / 3 / heads,
                  N = B * heads;
    const Tensor parts = qkv.view({B, T, 3, heads, d})
                             .permute({2, 0, 3, 1, 4})
                             .clone(at::MemoryFormat::Contiguous)
                             .view({3, N, T, d});
    const Tensor q = parts[0], k = parts[1], v = parts[2];
    q.mul_(1 / std::sqrt(static_cast<double>(d)));
    Tensor padded;
    if (mask)
      padded = mask->unsqueeze(1).expand({B, heads, T}).reshape({N, T, 1});
    const Tensor y = at::empty({N, T, d}, qkv.options());
    each_part(plan->tiles, N, qkv.is_cpu(), [&](const TilePart& part) {
      const Tensor w = part.weights(part.take(q, {part.tile.q}),
                                    part.take(k, part.tile.k), padded);
      part.put(y, w, part.take(v, part.tile.k));
    });
    ctx->save_for_backward({parts, padded});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return join_heads(y.view({B, heads, T, d}));
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor q = saved[0][0], k = saved[0][1], v = saved[0][2],
                 padded = saved[1];
    const int64_t heads = ctx->saved_data["heads"].toInt(), N = q.size(0),
                  T = q.size(1), d = q.size(2), B = N / heads;
    const auto plan = c10::static_intrusive_pointer_cast<Plan>(
        ctx->saved_data["plan"].toCapsule());
    const Tensor dy = split_heads(grads[0], heads).reshape({N, T, d});
    const Tensor all = at::zeros_like(saved[0]);
    const Tensor dq = all[0], dk = all[1], dv = all[2];
    each_part(plan->tiles, N, q.is_cpu(), [&](const TilePart& part) {
      const Tensor qs = part.take(q, {part.tile.q}),
                   ks = part.take(k, part.tile.k),
                   g = part.take(dy, {part.tile.q});
      const Tensor w = part.weights(qs, ks, padded);
      part.add(dv, w.transpose(1, 2), g);
      const Tensor dw = at::bmm(g, part.take(v, part.tile.k).transpose(1, 2));
      const Tensor ds = at::_softmax_backward_data(dw, w, -1, w.scalar_type());
      part.put(dq, ds, ks);
      part.add(dk, ds.transpose(1, 2), qs);
    });
    dq.mul_(1 / std::sqrt(static_cast<double>(d)));
    return {all.view({3, B, heads, T, d})
                .permute({1, 3, 0, 2, 4})
                .reshape({B, T, 3 * heads * d}),
            Tensor(), Tensor(), Tensor()};
  }
};

/// The positions of a span, in row-major order.
Tensor positions(const Span& span, const at::Device& device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  return (at::arange(span.rows, options).mul_(span.step).unsqueeze(1) +
          at::arange(span.columns, options).mul_(span.inner))
      .add_(span.first)
      .flatten();
}

}  // namespace

Tensor comes_after(const Span& k, const Span& q, const at::Device& device) {
  return positions(k, device) > positions(q, device).unsqueeze(1);
}

Tensor take(const Tensor& x, const std::vector<Span>& spans) {
  return TilePart{Tile(), 0, x.size(0), 0, 1}.take(x, spans);
}

Tensor attend_tiles(const Tensor& qkv, int64_t heads, const Tensor& padded,
                    std::vector<Tile> tiles) {
  return ops::OnceDifferentiable<AttendTiles>::apply(
      qkv, heads, ops::maybe(padded),
      c10::make_intrusive<Plan>(std::move(tiles)));
}

Tensor attend_all(const Tensor& qkv, int64_t heads, bool causal,
                  const Tensor& padded) {
  // The fastest numbers of queries per tile from 16 to 4096 positions, except
  // that causal tiles of 128 are slower up to 512: the mask discards more.
  const int64_t T = qkv.size(1),
                most = causal ? std::clamp<int64_t>(T / 8, kTile, 2 * kTile)
                              : 4 * kTile,
                count = std::max<int64_t>((T + most - 1) / most, 1),
                rows = (T + count - 1) / count;
  Tensor later;
  if (causal) {
    const Span own{0, 1, 0, rows, 1};
    later = comes_after(own, own, qkv.device());
  }
  std::vector<Tile> tiles;
  for (int64_t begin = 0; begin < T; begin += rows) {
    const int64_t n = std::min(rows, T - begin);
    Tile tile;
    tile.q = {begin, 1, 0, n, 1};
    tile.k = {{0, 1, 0, causal ? begin + n : T, 1}};
    if (causal) tile.hidden = later.narrow(0, 0, n).narrow(1, 0, n);
    tiles.push_back(std::move(tile));
  }
  return attend_tiles(qkv, heads, padded, std::move(tiles));
}

}  // namespace aft::nn
