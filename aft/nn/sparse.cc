#include "aft/nn/sparse.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "aft/nn/heads.h"
#include "aft/ops/common.h"

namespace aft::nn {
namespace {

using at::Tensor;

/// Scores computed at once, so that they and their copies stay in the cache.
constexpr int64_t kTileScores = 1 << 16;

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
  /// Gathers x [N, T, d] at the spans, as [count rows, positions, d].
  Tensor take(const Tensor& x, const std::vector<Span>& spans) const {
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
  void put(const Tensor& x, const Tensor& y) const {
    view(x, tile.q).copy_(y.view({count, -1, tile.q.columns, y.size(2)}));
  }
  void add(const Tensor& x, const Tensor& y) const {
    each(y, tile.k, [&](const Tensor& piece, const Span& span) {
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
    Tensor w = scores.softmax(-1);
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
  const auto run = [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (const Tile& tile : tiles) {
      int64_t size = tile.apart ? tile.q.columns : tile.q.size(), keys = 0;
      for (const Span& span : tile.k)
        keys += tile.apart ? span.columns : span.size();
      size = std::max<int64_t>(size * keys, 1);
      const int64_t all = tile.apart ? tile.q.rows : 1;
      const int64_t rows =
          std::min(std::max<int64_t>(kTileScores / size, 1), all);
      const int64_t count = std::max<int64_t>(kTileScores / (size * rows), 1);
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

struct AttendTiles : torch::autograd::Function<AttendTiles> {
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
      part.put(y, at::bmm(w, part.take(v, part.tile.k)));
    });
    ctx->save_for_backward({parts, padded});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return join_heads(y.view({B, heads, T, d}));
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    ops::refuse_double_backward("attend_tiles");
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
      part.add(dv, at::bmm(w.transpose(1, 2), g));
      const Tensor dw = at::bmm(g, part.take(v, part.tile.k).transpose(1, 2));
      const Tensor ds = at::_softmax_backward_data(dw, w, -1, w.scalar_type());
      part.put(dq, at::bmm(ds, ks));
      part.add(dk, at::bmm(ds.transpose(1, 2), qs));
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

/// |t - j| < stride, in blocks of L queries: a block sees itself, the stride -
/// 1 positions before it and, if not causal, as many after it.
std::vector<Tile> local_tiles(int64_t T, int64_t stride, bool causal,
                              const at::Device& device) {
  const int64_t before = std::min(stride, T) - 1, after = causal ? 0 : before;
  const int64_t L = std::clamp<int64_t>(stride, 16, kTile);
  std::vector<Tile> tiles;
  const auto add = [&](int64_t begin, int64_t rows) {
    const int64_t end = std::min(begin + L, T),
                  low = std::max<int64_t>(begin - before, 0),
                  high = std::min(end + after, T);
    Tile tile;
    tile.apart = true;
    tile.q = {begin, rows, L, end - begin, 1};
    // At most as wide as a step; otherwise rows would add to the same keys
    // concurrently.
    for (int64_t at = low; at < high; at += L)
      tile.k.push_back({at, rows, L, std::min(L, high - at), 1});
    const Tensor distance =
        positions({begin, 1, 0, end - begin, 1}, device).unsqueeze(1) -
        positions({low, 1, 0, high - low, 1}, device);
    tile.hidden = at::logical_or(distance > before, distance < -after);
    tiles.push_back(std::move(tile));
  };
  // Blocks with complete neighbourhoods are merged into one tile.
  for (int64_t begin = 0; begin < T;) {
    int64_t rows = 1;
    if (begin >= before && begin + L + after <= T)
      rows = (T - begin - after) / L;
    add(begin, rows);
    begin += rows * L;
  }
  return tiles;
}

/// (t - j) mod stride = 0: the columns of the sequence laid out in rows of
/// `stride`.
std::vector<Tile> strided_tiles(int64_t T, int64_t stride, bool causal,
                                const at::Device& device) {
  std::vector<Tile> tiles;
  const auto add = [&](int64_t first, int64_t columns, int64_t length) {
    for (int64_t begin = 0; begin < length && columns > 0; begin += kTile) {
      const int64_t n = std::min(kTile, length - begin);
      Tile tile;
      tile.apart = true;
      tile.q = {first + begin * stride, columns, 1, n, stride};
      tile.k = {{first, columns, 1, causal ? begin + n : length, stride}};
      if (causal) {
        const Span own{0, 1, 0, n, 1};
        tile.hidden = comes_after(own, own, device);
      }
      tiles.push_back(std::move(tile));
    }
  };
  const int64_t lines = T / stride, rest = T % stride;
  add(0, rest, lines + 1);  // the last row may be incomplete
  add(rest, stride - rest, lines);
  return tiles;
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
  return AttendTiles::apply(qkv, heads, ops::maybe(padded),
                            c10::make_intrusive<Plan>(std::move(tiles)));
}

MixerKind sparse_kind() {
  MixerKind kind = mixer_kind<SparseImpl>("sparse", [](const MixerOptions& o) {
    return SparseOptions(o.dim, 8, 32)
        .causal(o.causal)
        .pattern(o.layer % 2 == 0 ? "local" : "strided");
  });
  kind.grows = true;  // in the strided layers
  return kind;
}

void SparseImpl::reset() {
  TORCH_CHECK(options.stride() >= 1, "Sparse: stride must be 1 or more, got ",
              options.stride());
  TORCH_CHECK(local() || options.pattern() == "strided",
              "Sparse: pattern must be local or strided, got ",
              options.pattern());
  make_layers({"Sparse", options.dim(), options.heads(), options.causal()});
}

std::string SparseImpl::details() const {
  return detail("stride", options.stride()) + ", pattern=" + options.pattern();
}

Tensor SparseImpl::forward(const Tensor& x, const Tensor& mask) {
  check_sequence(x);
  check_mask(mask, x);
  const auto tiles = local() ? local_tiles : strided_tiles;
  return out(attend_tiles(
      qkv(x), options.heads(), mask,
      tiles(x.size(1), options.stride(), options.causal(), x.device())));
}

ops::Stream SparseImpl::start(int64_t B) const {
  ops::Stream stream = QkvMixer::start(B);
  if (local()) {
    const std::vector<int64_t> ring{B, options.stride(), options.dim()};
    stream.ring_k = at::zeros(ring, stream.ring_k.options());
    stream.ring_v = at::zeros(ring, stream.ring_v.options());
  }
  return stream;
}

Tensor SparseImpl::step(const Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position(x);
  const int64_t stride = options.stride(), t = stream.position;
  const auto now = project(x);
  Tensor k, v;
  if (local()) {  // the order within the ring does not matter
    stream.ring_k.select(1, t % stride).copy_(now[1]);
    stream.ring_v.select(1, t % stride).copy_(now[2]);
    stream.position = t + 1;
    const int64_t seen = std::min(t + 1, stride);
    k = stream.ring_k.narrow(1, 0, seen), v = stream.ring_v.narrow(1, 0, seen);
  } else {
    remember(stream, now[1], now[2]);
    k = stream.ring_k.slice(1, t % stride, t + 1, stride);
    v = stream.ring_v.slice(1, t % stride, t + 1, stride);
  }
  return out(attend_one(now[0], k, v, options.heads()));
}

}  // namespace aft::nn
