#include "aft/nn/sparse.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "aft/nn/heads.h"
#include "aft/nn/tiled_attention.h"

namespace aft::nn {
namespace {

using at::Tensor;

/// |t - j| < stride, in blocks of L queries: a block sees itself, the stride -
/// 1 positions before it and, if not causal, as many after it.
std::vector<Tile> local_tiles(int64_t T, int64_t stride, bool causal,
                              const at::Device& device) {
  const int64_t before = std::min(stride, T) - 1, after = causal ? 0 : before;
  const int64_t L = std::clamp<int64_t>(stride, 16, kTile);
  const auto options = at::TensorOptions(at::kLong).device(device);
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
    const Tensor distance = at::arange(begin, end, options).unsqueeze(1) -
                            at::arange(low, high, options);
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
  check_fits(shape_.name, stream, now[2]);
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
