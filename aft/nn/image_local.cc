#include "aft/nn/image_local.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "aft/nn/heads.h"

namespace aft::nn {

using at::Tensor;

MixerKind image_local1d_kind() {
  MixerKind kind =
      mixer_kind<ImageLocalImpl>("image-local1d", [](const MixerOptions& o) {
        return ImageLocalOptions(o.dim, 8).pattern("1d").block(32);
      });
  kind.non_causal = false;
  return kind;
}

MixerKind image_local2d_kind() {
  MixerKind kind =
      mixer_kind<ImageLocalImpl>("image-local2d", [](const MixerOptions& o) {
        return ImageLocalOptions(o.dim, 8).pattern("2d").columns(o.columns);
      });
  kind.non_causal = false;
  kind.grows = true;
  return kind;
}

void ImageLocalImpl::reset() {
  TORCH_CHECK(flat() || options.pattern() == "2d",
              "ImageLocal: pattern must be 1d or 2d, got ", options.pattern());
  const auto check = [](const char* what, int64_t value, int64_t least) {
    TORCH_CHECK(value >= least, "ImageLocal: ", what, " must be ", least,
                " or more, got ", value);
  };
  check("block", options.block(), 1);
  check("columns", options.columns(), 1);
  check("query_rows", options.query_rows(), 1);
  check("query_columns", options.query_columns(), 1);
  check("memory_rows", options.memory_rows(), 0);
  check("memory_columns", options.memory_columns(), 0);
  make_layers({"ImageLocal", options.dim(), options.heads(), /*causal=*/true});
}

void ImageLocalImpl::pretty_print(std::ostream& stream) const {
  stream << "ImageLocal(dim=" << options.dim() << ", heads=" << options.heads()
         << ", pattern=" << options.pattern();
  if (flat()) {
    stream << ", block=" << options.block();
  } else {
    stream << ", columns=" << options.columns() << ", query=["
           << options.query_rows() << ", " << options.query_columns()
           << "], memory=[" << options.memory_rows() << ", "
           << options.memory_columns() << "]";
  }
  stream << ")";
}

std::vector<Tile> ImageLocalImpl::tiles_1d(int64_t T,
                                           const at::Device& device) const {
  const int64_t block = options.block(), whole = T / block;
  std::vector<Tile> tiles;
  const auto add = [&](int64_t first, int64_t blocks, int64_t length) {
    for (int64_t begin = 0; begin < length && blocks > 0; begin += kTile) {
      const int64_t n = std::min(kTile, length - begin);
      const Span own{0, 1, 0, n, 1};
      Tile tile;
      tile.apart = true;
      tile.q = {first + begin, blocks, block, n, 1};
      if (first > 0) tile.k.push_back({first - block, blocks, block, block, 1});
      tile.k.push_back({first, blocks, block, begin + n, 1});
      tile.hidden = comes_after(own, own, device);
      tiles.push_back(std::move(tile));
    }
  };
  add(0, std::min<int64_t>(whole, 1), block);
  add(block, whole - 1, block);
  add(whole * block, 1, T % block);
  return tiles;
}

/// The keys of the queries in the block at (row, column): the margins and the
/// block down to row `end` (exclusive), and row `end` up to column `stop`
/// (exclusive; 0: none).
std::vector<Span> ImageLocalImpl::seen(int64_t row, int64_t column, int64_t end,
                                       int64_t stop) const {
  const int64_t C = options.columns(), memory = options.memory_columns();
  const int64_t left = std::max<int64_t>(column - memory, 0),
                block = std::min(column + options.query_columns(), C),
                right = std::min(block + memory, C),
                top = std::max<int64_t>(row - options.memory_rows(), 0);
  std::vector<Span> spans;
  if (top < row)
    spans.push_back({top * C + left, row - top, C, right - left, 1});
  if (row < end)
    spans.push_back({row * C + left, end - row, C, block - left, 1});
  if (left < stop) spans.push_back({end * C + left, 1, C, stop - left, 1});
  return spans;
}

std::vector<Tile> ImageLocalImpl::tiles_2d(int64_t T,
                                           const at::Device& device) const {
  const int64_t C = options.columns(), rows = options.query_rows(),
                columns = options.query_columns();
  const int64_t whole = T / C, rest = T % C;
  const int64_t high = std::max<int64_t>(kTile / std::min(columns, C), 1);
  std::vector<Tile> tiles;
  for (int64_t row = 0; row * C < T; row += rows) {
    for (int64_t column = 0; column < C; column += columns) {
      const int64_t left =
                        std::max<int64_t>(column - options.memory_columns(), 0),
                    right = std::min(column + columns, C);
      const int64_t last = std::min(row + rows, whole);
      for (int64_t r = row; r < last; r += high) {
        const int64_t n = std::min(high, last - r);
        Tile tile;
        tile.q = {r * C + column, n, C, right - column, 1};
        tile.k = seen(row, column, r + n, 0);
        tile.hidden =
            comes_after({r * C + left, n, C, right - left, 1}, tile.q, device);
        tiles.push_back(std::move(tile));
      }
      // The last row of the image, if it is incomplete.
      if (last == whole && whole < row + rows && column < rest) {
        const int64_t stop = std::min(right, rest);
        Tile tile;
        tile.q = {whole * C + column, 1, C, stop - column, 1};
        tile.k = seen(row, column, whole, stop);
        tile.hidden = comes_after(tile.k.back(), tile.q, device);
        tiles.push_back(std::move(tile));
      }
    }
  }
  return tiles;
}

Tensor ImageLocalImpl::forward(const Tensor& x, const Tensor& mask) {
  check_sequence(x);
  check_mask(mask, x);
  const int64_t T = x.size(1);
  return out(
      attend_tiles(qkv(x), options.heads(), mask,
                   flat() ? tiles_1d(T, x.device()) : tiles_2d(T, x.device())));
}

ops::Stream ImageLocalImpl::start(int64_t B) const {
  ops::Stream stream = QkvMixer::start(B);
  if (flat()) {
    const std::vector<int64_t> blocks{B, 2 * options.block(), options.dim()};
    stream.ring_k = at::zeros(blocks, stream.ring_k.options());
    stream.ring_v = at::zeros(blocks, stream.ring_v.options());
  }
  return stream;
}

Tensor ImageLocalImpl::step(const Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position(x);
  const int64_t t = stream.position;
  const auto now = project(x);
  Tensor k, v;
  check_fits(shape_.name, stream, now[2]);
  if (flat()) {
    // The ring holds the previous block, then this one.
    const int64_t block = options.block(),
                  at = t < block ? t : block + t % block;
    const auto append = [&](Tensor& ring, const Tensor& y) {
      if (t >= 2 * block && at == block)
        ring.narrow(1, 0, block).copy_(ring.narrow(1, block, block));
      ring.select(1, at).copy_(y);
      return ring.narrow(1, 0, at + 1);
    };
    k = append(stream.ring_k, now[1]), v = append(stream.ring_v, now[2]);
    stream.position = t + 1;
  } else {
    remember(stream, now[1], now[2]);
    const int64_t row = t / options.columns(), column = t % options.columns();
    const std::vector<Span> spans =
        seen(row - row % options.query_rows(),
             column - column % options.query_columns(), row, column + 1);
    k = take(stream.ring_k, spans), v = take(stream.ring_v, spans);
  }
  return out(attend_one(now[0], k, v, options.heads()));
}

}  // namespace aft::nn
