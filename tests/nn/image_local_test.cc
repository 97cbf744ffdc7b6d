// The Image Transformer's local attention against plain double loops over all
// pairs of positions: forward, gradients, causality, streaming, errors.
#include "aft/nn/image_local.h"

#include <array>
#include <string>

#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"

namespace aft::nn {
namespace {

Sees sees(const ImageLocalOptions& o) {
  if (o.pattern() == "1d")
    return [b = o.block()](int64_t t, int64_t j) {
      return j <= t && t / b - j / b <= 1;
    };
  return [o](int64_t t, int64_t j) {
    if (j > t) return false;
    const int64_t C = o.columns(), row = j / C, column = j % C;
    // The first row and column of t's block, and those after its last.
    const int64_t top = t / C / o.query_rows() * o.query_rows(),
                  left = t % C / o.query_columns() * o.query_columns(),
                  bottom = top + o.query_rows(),
                  right = left + o.query_columns();
    const auto in = [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
      return r0 <= row && row < r1 && c0 <= column && column < c1;
    };
    const int64_t mr = o.memory_rows(), mc = o.memory_columns();
    return in(top, bottom, left, right) ||            // the block
           in(top, bottom, left - mc, left) ||        // left of it
           in(top - mr, top, left - mc, right + mc);  // above it
  };
}

/// Small blocks and margins, some larger than the image.
template <class F>
void for_each_kind(int64_t dim, int64_t heads, const F& f) {
  const auto call = [&](const ImageLocalOptions& o) {
    SCOPED_TRACE(printed(*ImageLocal(o)));
    f(o);
  };
  const ImageLocalOptions o(dim, heads);
  for (int64_t block : {1, 3, 7, 64, 70, 1000})
    call(ImageLocalOptions(o).pattern("1d").block(block));
  using Five = std::array<int64_t, 5>;
  for (const auto& [c, qr, qc, mr, mc] :
       {Five{8, 2, 2, 1, 2}, Five{7, 3, 4, 2, 3}, Five{10, 1, 4, 0, 3},
        Five{9, 4, 2, 3, 0}, Five{1, 3, 2, 2, 2}, Five{5, 2, 1, 9, 9},
        Five{6, 1, 1, 0, 0}, Five{12, 99, 5, 1, 1}, Five{11, 3, 99, 2, 50},
        Five{40, 20, 16, 3, 5}, Five{96, 16, 16, 16, 32}})
    call(ImageLocalOptions(o)
             .columns(c)
             .query_rows(qr)
             .query_columns(qc)
             .memory_rows(mr)
             .memory_columns(mc));
}

TEST(ImageLocal, MatchesItsDefinition) {
  torch::manual_seed(1);
  for (int64_t T : {1, 2, 8, 31, 65, 147}) {
    for (int64_t heads : {1, 3}) {
      if (T == 147 && heads == 1) continue;
      for_each_kind(6, heads, [&](const ImageLocalOptions& o) {
        SCOPED_TRACE("T " + std::to_string(T));
        ImageLocal m = shaken(ImageLocal(o));
        const Tensor x = torch::randn({2, T, 6}, torch::kDouble);
        expect_result(*m, x, {}, plain_attention(m, x, sees(o)));
      });
    }
  }
}

TEST(ImageLocal, LargerImages) {
  torch::manual_seed(2);
  const ImageLocalOptions o(2, 1);
  for (const auto& options :
       {ImageLocalOptions(o), ImageLocalOptions(o).columns(24).query_rows(5),
        ImageLocalOptions(o).columns(100).memory_rows(4).memory_columns(7),
        ImageLocalOptions(o).pattern("1d"),
        ImageLocalOptions(o).pattern("1d").block(100)}) {
    ImageLocal m = shaken(ImageLocal(options));
    const Tensor x = torch::randn({1, 1990, 2}, torch::kDouble);
    EXPECT_LE(distance(m(x), dense_attention(m, x, sees(options))), 1e-12);
  }
}

/// The positions that y_t depends on, as an image.
std::string drawing(ImageLocal m, int64_t T, int64_t t) {
  const Tensor x = torch::randn({1, T, m->options.dim()}, torch::kDouble)
                       .requires_grad_(true);
  m(x).select(1, t).sum().backward();
  std::string text;
  for (int64_t j = 0; j < T; ++j) {
    if (j % m->options.columns() == 0) text += '\n';
    const bool seen = largest(x.grad()[0][j]) > 0;
    text += j == t ? (seen ? 'Q' : '?') : seen ? 'x' : '.';
  }
  return text;
}

TEST(ImageLocal, SeesItsBlockAndTheMargin) {
  torch::manual_seed(3);
  ImageLocal m = shaken(ImageLocal(ImageLocalOptions(4, 2)
                                       .columns(10)
                                       .query_rows(3)
                                       .query_columns(2)
                                       .memory_rows(2)
                                       .memory_columns(3)));
  EXPECT_EQ(drawing(m, 60, 45), R"(
..........
.xxxxxxxx.
.xxxxxxxx.
.xxxxx....
.xxxxQ....
..........)");
  EXPECT_EQ(drawing(m, 60, 34), R"(
..........
.xxxxxxxx.
.xxxxxxxx.
.xxxQ.....
..........
..........)");
  EXPECT_EQ(drawing(m, 57, 50), R"(
..........
xxxxx.....
xxxxx.....
xx........
xx........
Q......)");
  EXPECT_EQ(drawing(m, 60, 19), R"(
.....xxxxx
.....xxxxQ
..........
..........
..........
..........)");
}

TEST(ImageLocal, PaddedKeysAreIgnored) {
  torch::manual_seed(4);
  for (int64_t T : {1, 9, 70, 130}) {
    for_each_kind(4, 2, [&](const ImageLocalOptions& o) {
      ImageLocal m = shaken(ImageLocal(o));
      const Tensor x = torch::randn({2, T, 4}, torch::kDouble);
      const Tensor mask = some_padded(2, T), y = m(x, mask);
      EXPECT_LE(distance(y, plain_attention(m, x, sees(o), mask)), 1e-12);
      EXPECT_LE(distance(y[0][0], m->out->bias), 0);
      expect_mask(*m, x, mask, m->out->bias);
    });
  }
}

TEST(ImageLocal, GradientsAreFiniteDifferences) {
  torch::manual_seed(5);
  const ImageLocalOptions small(4, 2);
  for (const auto& o : {ImageLocalOptions(small).pattern("1d").block(3),
                        ImageLocalOptions(small)
                            .columns(4)
                            .query_rows(2)
                            .query_columns(2)
                            .memory_rows(1)
                            .memory_columns(1)}) {
    for (bool padded : {false, true}) {
      ImageLocal m = shaken(ImageLocal(o));
      const Tensor x = torch::randn({2, 14, 4}, torch::kDouble);
      const Tensor mask = padded ? some_padded(2, 14) : Tensor();
      expect_gradients(*m, x, [&] { return m(x, mask); });
    }
  }
}

TEST(ImageLocal, GradientsMatchDenseAttention) {
  torch::manual_seed(6);
  for (int64_t T : {1, 30, 65, 200}) {
    for_each_kind(6, 3, [&](const ImageLocalOptions& o) {
      SCOPED_TRACE("T " + std::to_string(T));
      ImageLocal m = shaken(ImageLocal(o));
      const Tensor mask = T == 65 ? some_padded(2, T) : Tensor();
      expect_same_gradients(
          *m, torch::randn({2, T, 6}, torch::kDouble), 1e-10,
          [&](const Tensor& x) { return m(x, mask); },
          [&](const Tensor& x) {
            return dense_attention(m, x, sees(o), mask);
          });
    });
  }
}

TEST(ImageLocal, BitExactlyCausal) {
  torch::manual_seed(7);
  for_each_kind(8, 2, [&](const ImageLocalOptions& o) {
    expect_causal(*shaken(ImageLocal(o), torch::kFloat),
                  torch::randn({2, 200, 8}), {0, 15, 64, 100, 198});
  });
}

TEST(ImageLocal, StepEqualsForward) {
  torch::manual_seed(8);
  for_each_kind(6, 3, [&](const ImageLocalOptions& o) {
    expect_step_is_forward(
        *shaken(ImageLocal(o)), torch::randn({2, 70, 6}),
        o.pattern() == "1d" ? 2 * 2 * 2 * o.block() * 6 : -1);
  });
}

TEST(ImageLocal, ExtremesStayFinite) {
  torch::manual_seed(9);
  for (double scale : {1e3, 1e4}) {
    for_each_kind(8, 2, [&](const ImageLocalOptions& o) {
      ImageLocal m = shaken(ImageLocal(o), torch::kFloat);
      const Tensor x = torch::randn({2, 80, 8}) * scale;
      expect_finite(*m, x);
      expect_finite(*m, x, some_padded(2, 80));
    });
  }
}

TEST(ImageLocal, IndependentOfTheNumberOfThreads) {
  torch::manual_seed(10);
  for (const char* pattern : {"1d", "2d"}) {
    ImageLocal m = shaken(ImageLocal(
        ImageLocalOptions(12, 3).pattern(pattern).block(40).columns(30)));
    expect_same_on_threads(*m, torch::randn({1, 200, 12}, torch::kDouble),
                           1e-12);
  }
}

TEST(ImageLocal, EveryParameterMovesWithinTwoSteps) {
  torch::manual_seed(11);
  for (const char* pattern : {"1d", "2d"})
    expect_parameters_move(
        *ImageLocal(ImageLocalOptions(8, 2).pattern(pattern)),
        torch::randn({2, 11, 8}));
}

TEST(ImageLocal, PrintsCountsResetsAndPacks) {
  ImageLocal m(ImageLocalOptions(6, 2));
  EXPECT_EQ(printed(*m),
            "ImageLocal(dim=6, heads=2, pattern=2d, columns=96, query=[16, "
            "16], memory=[16, 32])");
  EXPECT_EQ(printed(*ImageLocal(ImageLocalOptions(6, 2).pattern("1d"))),
            "ImageLocal(dim=6, heads=2, pattern=1d, block=256)");
  EXPECT_EQ(count(*m), 4 * 6 * 6 + 4 * 6);
  EXPECT_EQ(m->parameters().size(), 4u);
  EXPECT_EQ(m->last_weight().sizes(), (at::IntArrayRef{6, 6}));
  const Tensor x = torch::randn({1, 8, 6});
  expect_resets(m, x);
  expect_in_sequential(m, 6);
  expect_clones_and_saves(*m, x);
  expect_packs(*m, x);
}

TEST(ImageLocal, InvalidArguments) {
  expect_usual_errors(
      "ImageLocal",
      [](int64_t heads, bool) {
        return ImageLocal(ImageLocalOptions(12, heads)).ptr();
      },
      /*always_causal=*/true);
  const ImageLocalOptions o(6, 2);
  const auto make = [](const ImageLocalOptions& options) {
    return [options] { ImageLocal m(options); };
  };
  expect_error(make(ImageLocalOptions(o).pattern("3d")),
               {"ImageLocal", "1d or 2d", "3d"});
  expect_error(make(ImageLocalOptions(o).block(0)),
               {"ImageLocal", "block", "0"});
  expect_error(make(ImageLocalOptions(o).columns(0)),
               {"ImageLocal", "columns", "0"});
  expect_error(make(ImageLocalOptions(o).query_rows(0)),
               {"ImageLocal", "query_rows", "0"});
  expect_error(make(ImageLocalOptions(o).query_columns(-2)),
               {"ImageLocal", "query_columns", "-2"});
  expect_error(make(ImageLocalOptions(o).memory_rows(-1)),
               {"ImageLocal", "memory_rows", "-1"});
  expect_error(make(ImageLocalOptions(o).memory_columns(-1)),
               {"ImageLocal", "memory_columns", "-1"});
}

}  // namespace
}  // namespace aft::nn
