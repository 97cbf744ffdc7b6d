// The lambda layer against plain loops: forward in training and evaluation,
// every gradient, padding, grids smaller than the table, packing, and the
// number of parameters.
#include "aft/nn/lambda.h"

#include <cmath>
#include <vector>

#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"

namespace aft::nn {
namespace {

/// Batch normalisation of rows, with the statistics of those that are kept.
void normalise(Matrix& rows, const std::vector<bool>& kept,
               const BatchNorm& norm) {
  const Numbers weight = numbers(norm->weight), bias = numbers(norm->bias),
                running_mean = numbers(norm->running_mean),
                running_var = numbers(norm->running_var);
  for (size_t c = 0; c < weight.size(); ++c) {
    double mean = 0, var = 0, count = 0;
    for (size_t i = 0; i < rows.size(); ++i)
      if (kept[i]) mean += rows[i][c], count += 1;
    mean /= count;
    for (size_t i = 0; i < rows.size(); ++i)
      if (kept[i]) var += (rows[i][c] - mean) * (rows[i][c] - mean);
    var /= count;
    if (!norm->is_training()) mean = running_mean[c], var = running_var[c];
    for (Numbers& row : rows)
      row[c] = weight[c] * (row[c] - mean) / std::sqrt(var + 1e-5) + bias[c];
  }
}

/// The layer, one position and head at a time.
Tensor oracle(const Lambda& m, const Tensor& x, int64_t rows, int64_t columns,
              const Tensor& mask = {}) {
  const int64_t dim = m->options.dim(), heads = m->options.heads(),
                K = m->options.k(), d = dim / heads, B = x.size(0),
                N = rows * columns;
  const Matrix X = rows_of(x.flatten(0, 1)), key = affine(m->key, X);
  Matrix q = affine(m->query, X), v = affine(m->value, X), y;
  const Numbers table = numbers(m->offsets);
  std::vector<bool> kept;
  for (int64_t i = 0; i < B * N; ++i)
    kept.push_back(!mask.defined() || !mask[i / N][i % N].item<bool>());
  normalise(q, kept, m->query_norm);
  normalise(v, kept, m->value_norm);

  for (int64_t n = 0; n < B * N; ++n) {
    y.emplace_back(dim, 0);
    if (!kept[n]) continue;
    const int64_t first = n / N * N;  // of the sample
    Matrix lambda(K, Numbers(d, 0));  // of position n
    for (int64_t a = 0; a < K; ++a) {
      double sum = 0;
      for (int64_t j = first; j < first + N; ++j)
        if (kept[j]) sum += std::exp(key[j][a]);
      for (int64_t j = first; j < first + N; ++j) {
        if (!kept[j]) continue;
        const int64_t down = (j - first) / columns - (n - first) / columns,
                      right = (j - first) % columns - (n - first) % columns,
                      cell = (down + m->options.rows() - 1) *
                                 (2 * m->options.columns() - 1) +
                             right + m->options.columns() - 1;
        const double weight = std::exp(key[j][a]) / sum + table[cell * K + a];
        for (int64_t c = 0; c < d; ++c) lambda[a][c] += weight * v[j][c];
      }
    }
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t c = 0; c < d; ++c)
        for (int64_t a = 0; a < K; ++a)
          y[n][h * d + c] += q[n][h * K + a] * lambda[a][c];
  }
  return tensor_of(m->out ? affine(m->out, y) : y).view({B, N, dim});
}

/// Sets the norms and running statistics to magnitudes as after training.
void stir(Lambda& m) {
  torch::NoGradGuard no_grad;
  for (BatchNorm* norm : {&m->query_norm, &m->value_norm}) {
    (*norm)->weight.normal_(1, 0.3), (*norm)->bias.normal_(0, 0.5);
    (*norm)->running_mean.normal_(0, 0.3);
    (*norm)->running_var.uniform_(0.3, 2);
  }
}

struct Shape {
  int64_t B, rows, columns, table_rows, table_columns, dim, heads, k;
  bool out;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {2, 1, 1, 1, 1, 4, 2, 3, true},    {2, 1, 5, 1, 5, 6, 1, 16, true},
      {3, 4, 1, 4, 1, 6, 3, 2, false},   {2, 3, 4, 3, 4, 12, 3, 16, true},
      {1, 4, 3, 4, 3, 12, 4, 5, true},   {2, 2, 3, 5, 4, 8, 2, 4, true},
      {2, 1, 2, 14, 14, 8, 2, 16, true}, {2, 5, 2, 5, 9, 8, 8, 1, false},
  };
  return all;
}

Lambda make(const Shape& s) {
  torch::manual_seed(7);
  Lambda m(LambdaOptions(s.dim, s.heads, s.table_rows, s.table_columns)
               .k(s.k)
               .out(s.out));
  stir(m);
  return m;
}

/// Masks some positions, but never all of a sample.
Tensor padding(int64_t B, int64_t N) {
  Tensor mask = torch::zeros({B, N}, torch::kBool);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t n = 0; n < N - 1; ++n)
      if ((3 * b + n) % 4 == 0) mask[b][n] = true;
  return mask;
}

TEST(Lambda, MatchesItsDefinition) {
  for (const Shape& s : shapes()) {
    for (bool training : {true, false}) {
      for (bool masked : {false, true}) {
        Lambda m = make(s);
        m->train(training);
        const int64_t N = s.rows * s.columns;
        const Tensor x = torch::randn({s.B, N, s.dim});
        const Tensor mask = masked ? padding(s.B, N) : Tensor();
        const Tensor want = oracle(m, x, s.rows, s.columns, mask);
        const double scale = largest(want);
        // Single precision first, because conversion loses digits.
        const Tensor single = m->forward_grid(x, {s.rows, s.columns}, mask);
        EXPECT_LE(distance(single, want), 1e-4 * scale);
        m = make(s);
        m->train(training);
        m->to(torch::kDouble);
        const Tensor y =
            m->forward_grid(x.to(torch::kDouble), {s.rows, s.columns}, mask);
        EXPECT_LE(distance(y, want), 1e-10 * scale)
            << s.rows << "x" << s.columns << " heads " << s.heads
            << (training ? " training" : "") << (masked ? " masked" : "");
      }
    }
  }
}

TEST(Lambda, GradientsMatchTheDefinition) {
  for (int way = 0; way < 3; ++way) {
    SCOPED_TRACE(way);
    const bool training = way != 1, masked = way == 2;
    Lambda m = make({2, 2, 3, 2, 4, 4, 2, 3, true});
    m->train(training);
    m->to(torch::kDouble);
    if (!training) {  // statistics that differ from the initial ones
      EXPECT_FALSE(torch::equal(m->query_norm->running_mean, torch::zeros(6)));
    }
    const Tensor x = torch::randn({2, 6, 4}, torch::kDouble),
                 mask = masked ? padding(2, 6) : Tensor();
    expect_gradients(
        *m, x,
        [&] {
          return m->forward_grid(x, {2, 3}, mask);
        },
        1, [&] { return oracle(m, x, 2, 3, mask); });
  }
}

TEST(Lambda, ForwardUsesTheWholeGrid) {
  Lambda m = make({2, 3, 5, 3, 5, 8, 2, 4, true});
  m->eval();
  const Tensor x = torch::randn({2, 15, 8});
  EXPECT_TRUE(torch::equal(m(x), m->forward_grid(x, {3, 5})));
  EXPECT_FALSE(torch::allclose(
      make({2, 5, 3, 5, 5, 8, 2, 4, true})->forward_grid(x, {5, 3}), m(x)));
}

// If values are 0 outside of a patch, moving the patch moves the result.
TEST(Lambda, IsTranslationEquivariant) {
  Lambda m = make({1, 6, 7, 6, 7, 8, 2, 4, false});
  m->eval();
  m->to(torch::kDouble);
  {
    torch::NoGradGuard no_grad;
    m->value_norm->bias.zero_(), m->value_norm->running_mean.zero_();
  }
  const Tensor patch = torch::randn({1, 2, 3, 8}, torch::kDouble);
  const auto at = [&](int64_t r, int64_t c) {
    Tensor x = torch::zeros({1, 6, 7, 8}, torch::kDouble);
    x.narrow(1, r, 2).narrow(2, c, 3).copy_(patch);
    return m(x.view({1, 42, 8})).view({1, 6, 7, 8});
  };
  const Tensor a = at(1, 1), b = at(3, 2);
  EXPECT_TRUE(torch::allclose(a.narrow(1, 0, 4).narrow(2, 0, 6),
                              b.narrow(1, 2, 4).narrow(2, 1, 6), 1e-10, 1e-10));
  EXPECT_FALSE(torch::allclose(a, b));
  // All background queries are equal, so that only the offset differs.
  EXPECT_FALSE(torch::allclose(a.select(1, 5), a.select(1, 4)));
}

TEST(Lambda, PaddingIsIgnored) {
  for (bool training : {true, false}) {
    Lambda m = make({2, 3, 4, 3, 4, 12, 3, 16, true});
    m->train(training);
    const Tensor x = torch::randn({2, 12, 12});
    Tensor other = x.clone(), mask = torch::zeros({2, 12}, torch::kBool);
    for (int64_t n : {0, 5, 11}) mask[1][n] = true, other[1][n] += 100;
    EXPECT_TRUE(torch::equal(m(x, mask), m(other, mask)));

    // A fully masked sample gives the bias and finite gradients.
    mask[0].fill_(true);
    Tensor in = x.clone().requires_grad_(true);
    const Tensor y = m(in, mask);
    EXPECT_TRUE(torch::equal(y[0], m->out->bias.expand({12, 12})));
    y.pow(2).sum().backward();
    EXPECT_EQ(largest(in.grad()[0]), 0);
    EXPECT_TRUE(is_finite(in.grad()));
    for (const auto& p : m->parameters()) EXPECT_TRUE(is_finite(p.grad()));
  }
  Lambda m = make({2, 3, 4, 3, 4, 12, 3, 16, true});
  m->eval();
  expect_mask(*m, torch::randn({2, 12, 12}), padding(2, 12), m->out->bias);
}

TEST(Lambda, IsFiniteAtExtremes) {
  for (bool training : {true, false}) {
    for (double scale : {0., 1e3, 1e4}) {
      SCOPED_TRACE(scale);
      Lambda m = make({2, 5, 4, 5, 4, 12, 3, 16, true});
      m->train(training);
      expect_finite(*m, torch::randn({2, 20, 12}) * scale);
    }
  }
}

TEST(Lambda, PackedEqualsEvaluation) {
  for (const Shape& s : shapes()) {
    Lambda m = make(s), packed = make(s);
    m->eval(), packed->eval();
    packed->pack_for_inference();
    torch::NoGradGuard no_grad;
    const int64_t N = s.rows * s.columns;
    const Tensor x = torch::randn({s.B, N, s.dim});
    for (const Tensor& mask : {Tensor(), padding(s.B, N)}) {
      const Tensor want = m->forward_grid(x, {s.rows, s.columns}, mask),
                   y = packed->forward_grid(x, {s.rows, s.columns}, mask);
      EXPECT_LE(distance(y, want), 1e-5 * largest(want));
    }
    EXPECT_TRUE(packed->query.is_packed() && packed->key.is_packed() &&
                packed->value.is_packed());
  }
}

TEST(Lambda, HasTheParametersOfThePaper) {
  for (bool out : {true, false}) {
    for (int64_t heads : {3, 6}) {
      const int64_t dim = 64 * heads;
      const int64_t one =
          count(*Lambda(LambdaOptions(dim, heads, 14, 14).out(out)));
      EXPECT_EQ(one, dim * (16 * heads + 16 + 64) + 2 * (16 * heads + 64) +
                         27 * 27 * 16 + (out ? dim * dim + dim : 0));
      if (!out) continue;
      // 12 layers with norms and MLPs, patches, positions of 196 patches
      // without a class token, the last norm and the head. Published: 4.8
      // and 17.7 M.
      EXPECT_EQ(12 * (one + 4 * dim + 8 * dim * dim + 5 * dim) +
                    (768 * dim + dim) + 196 * dim + 2 * dim +
                    (1000 * dim + 1000),
                heads == 3 ? 4820584 : 17682472);
    }
  }
  torch::manual_seed(1);
  const Lambda m(LambdaOptions(8, 2, 9, 20).k(5));
  EXPECT_EQ(m->offsets.sizes(), (at::IntArrayRef{17, 39, 5}));
  EXPECT_NEAR(m->offsets.std().item<double>(), 1, 0.05);
}

TEST(Lambda, EveryParameterMovesWithinTwoSteps) {
  expect_parameters_move(*make({4, 3, 4, 3, 4, 12, 3, 16, true}),
                         torch::randn({4, 12, 12}));
}

TEST(Lambda, PrintsAndClones) {
  Lambda m = make({2, 3, 4, 3, 4, 12, 3, 16, true});
  const Tensor x = torch::randn({2, 12, 12});
  m(x);
  m->eval();
  EXPECT_EQ(printed(*m),
            "Lambda(dim=12, heads=3, rows=3, columns=4, k=16, out=true)");
  expect_clones_and_saves(*m, x);
  EXPECT_TRUE(m->last_weight().is_same(m->out->weight));
  Lambda bare(LambdaOptions(12, 3, 3, 4).out(false));
  EXPECT_FALSE(bare->last_weight().defined());
  EXPECT_EQ(bare->parameters().size(), 8u);
}

TEST(Lambda, InvalidArguments) {
  Lambda m(LambdaOptions(12, 3, 3, 4));
  expect_error([&] { m->start(1); }, {"Lambda", "causal"});
  ops::Stream stream;
  expect_error(
      [&] {
        m->step(torch::randn({1, 12}), stream);
      },
      {"Lambda", "causal"});
  expect_error(
      [&] {
        m(torch::randn({2, 12, 5}));
      },
      {"Lambda", "[B, T, 12]", "[2, 12, 5]"});
  expect_error(
      [&] {
        m(torch::randn({2, 11, 12}));
      },
      {"Lambda", "T = 11", "[3, 4]"});
  expect_error(
      [&] {
        m->forward_grid(torch::randn({2, 12, 12}), {12});
      },
      {"Lambda", "rows x columns", "[12]"});
  expect_error(
      [&] {
        m->forward_grid(torch::randn({2, 12, 12}), {4, 3});
      },
      {"Lambda", "4x3", "3x4"});
  expect_error(
      [&] {
        m->forward_grid(torch::randn({2, 15, 12}), {3, 5});
      },
      {"Lambda", "3x5", "3x4"});
  expect_error(
      [&] {
        m(torch::randn({2, 12, 12}), torch::zeros({2, 11}, torch::kBool));
      },
      {"Lambda", "bool [B, T] = [2, 12]", "[2, 11]"});
  expect_error([] { Lambda(LambdaOptions(12, 5, 3, 4)); },
               {"Lambda", "heads", "12", "5"});
  expect_error([] { Lambda(LambdaOptions(12, 3, 0, 4)); },
               {"Lambda", "rows", "0"});
  expect_error([] { Lambda(LambdaOptions(12, 3, 3, 4).k(0)); },
               {"Lambda", "k", "0"});
  expect_error(
      [&] {
        Lambda one(LambdaOptions(4, 2, 1, 1));
        one(torch::randn({1, 1, 4}));
      },
      {"BatchNorm", "two or more"});
}

}  // namespace
}  // namespace aft::nn
