#include "cli/measure/cases.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <stdexcept>

#include "aft/ops/ops.h"

namespace aft::cli {

const char* pass_name(Pass pass) {
  return pass == Pass::kForward ? "forward" : "forward+backward";
}

std::string Case::name() const {
  const auto number = [](int64_t n) { return std::to_string(n); };
  std::string s = variant;
  if (variant == "full") s += number(rank);
  if (variant == "local" || variant == "conv") s += number(window);
  if (causal) s += "-causal";
  if (grid.size() > 1) {
    s += "-" + number(grid[0]);
    for (size_t i = 1; i < grid.size(); ++i) s += "x" + number(grid[i]);
  }
  s += "-B" + number(B);
  if (grid.size() <= 1) s += "-T" + number(T);
  s += "-D" + number(D);
  if (variant == "conv" || variant == "one_tap") s += "-h" + number(H);
  return s;
}

Case simple_case(int64_t B, int64_t T, int64_t D) {
  return {"simple", B, T, D, D, true, 0, 0, {}};
}

Case local_case(int64_t B, int64_t T, int64_t D, int64_t window, int64_t rank) {
  return {"local", B, T, D, D, true, window, rank, {}};
}

Case full_case(int64_t B, int64_t T, int64_t D, int64_t rank, bool causal) {
  return {"full", B, T, D, D, causal, 0, rank, {}};
}

Case conv1d_case(int64_t B, int64_t T, int64_t D, int64_t heads,
                 int64_t kernel) {
  return {"conv", B, T, D, heads, true, kernel, 0, {T}};
}

Case conv2d_case(int64_t B, int64_t side, int64_t D, int64_t heads,
                 int64_t kernel) {
  return {"conv", B, side * side, D, heads, false, kernel, 0, {side, side}};
}

Case one_tap2d_case(int64_t B, int64_t side, int64_t D, int64_t heads,
                    int64_t kernel) {
  return {"one_tap", B, side * side, D, heads, false, kernel, 0, {side, side}};
}

Data make_data(const Case& c) {
  auto generator = at::detail::createCPUGenerator(20210528);
  const auto normal = [&](std::vector<int64_t> shape, double deviation) {
    return at::randn(shape, generator, at::kFloat).mul_(deviation);
  };
  Data data{normal({c.B, c.T, c.D}, 1),
            normal({c.B, c.T, c.H}, 1),
            normal({c.B, c.T, c.D}, 1),
            normal({c.B, c.T, c.D}, 1),
            {},
            {}};
  if (c.variant == "full" || c.variant == "local") {
    data.bias = {normal({c.T, c.rank}, 0.01), normal({c.T, c.rank}, 0.01)};
  } else if (c.variant == "conv") {
    std::vector<int64_t> shape = {c.H};
    shape.resize(1 + c.grid.size(), c.window);
    data.bias = {normal(shape, 0.1)};
  } else if (c.variant == "one_tap") {
    data.bias = {normal({c.H}, 1)};
    data.offsets = at::randint(-(c.window / 2), c.window / 2 + 1,
                               {c.H, static_cast<int64_t>(c.grid.size())},
                               generator, at::kLong);
  }
  return data;
}

Side autograd_side(
    const std::string& name, const std::vector<at::Tensor>& values,
    const at::Tensor& dy,
    std::function<at::Tensor(const std::vector<at::Tensor>&)> f) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : values) {
    leaves.push_back(x.detach().requires_grad_(true));
  }
  Side side;
  side.name = name;
  side.run = [=](Pass pass) -> std::vector<at::Tensor> {
    if (pass == Pass::kForward) {
      const at::NoGradGuard inference;
      return {f(leaves)};
    }
    const at::Tensor y = f(leaves);
    std::vector<at::Tensor> out = torch::autograd::grad({y}, leaves, {dy});
    out.insert(out.begin(), y.detach());
    return out;
  };
  return side;
}

Side aft_side(const Case& c, const Data& data) {
  std::vector<at::Tensor> values = {data.q, data.k, data.v};
  values.insert(values.end(), data.bias.begin(), data.bias.end());
  ops::Common common;
  common.causal = c.causal;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> f;
  if (c.variant == "simple") {
    f = [=](const std::vector<at::Tensor>& x) {
      return ops::simple(x[0], x[1], x[2], common);
    };
  } else if (c.variant == "full") {
    f = [=](const std::vector<at::Tensor>& x) {
      return ops::full(x[0], x[1], x[2], {x[3], x[4], {}}, common);
    };
  } else if (c.variant == "local") {
    f = [=](const std::vector<at::Tensor>& x) {
      return ops::local(x[0], x[1], x[2], c.window, {x[3], x[4], {}}, false,
                        common);
    };
  } else if (c.variant == "conv") {
    f = [=](const std::vector<at::Tensor>& x) {
      return ops::conv(x[0], x[1], x[2], x[3], c.grid, false, common);
    };
  } else if (c.variant == "one_tap") {
    f = [=](const std::vector<at::Tensor>& x) {
      return ops::one_tap(x[0], x[1], x[2], x[3], data.offsets, c.grid, common);
    };
  } else {
    throw std::invalid_argument(
        "bench: variant must be simple, local, full, conv or one_tap, got " +
        c.variant);
  }
  return autograd_side("aft", values, data.dy, f);
}

void check_same(const Side& aft, const Side& other, Pass pass) {
  const std::vector<at::Tensor> ours = aft.run(pass);
  std::vector<at::Tensor> theirs = other.run(pass);
  if (other.as_aft) theirs = other.as_aft(theirs);
  for (size_t i = 0; i < ours.size(); ++i) {
    const double scale = ours[i].abs().max().item<double>();
    const double difference =
        (ours[i] - theirs[i]).abs().max().item<double>() / scale;
    // Naive float sums over 3072 keys have errors of about 1e-5.
    if (!(difference < 1e-3)) {
      throw std::runtime_error(
          "bench: aft and " + other.name + " disagree in " +
          (i == 0 ? "y" : "gradient " + std::to_string(i)) +
          ": expected at most 1e-3 of the largest value, got " +
          std::to_string(difference));
    }
  }
}

Work work(const Case& c, Pass pass) {
  double pairs = 1;  // of one batch row and one channel
  if (c.variant == "simple" || c.variant == "one_tap") {
    pairs = static_cast<double>(c.T);
  } else if (c.variant == "conv") {
    for (int64_t size : c.grid) {
      double along = 0;  // one axis; the window is a product of axes
      for (int64_t t = 0; t < size; ++t) {
        const int64_t back = c.causal ? c.window - 1 : c.window / 2;
        const int64_t ahead = c.causal ? 0 : c.window / 2;
        along += static_cast<double>(std::min(t, back) +
                                     std::min(size - 1 - t, ahead) + 1);
      }
      pairs *= along;
    }
  } else {
    const int64_t reach = c.variant == "full" ? c.T - 1 : c.window - 1;
    pairs = 0;
    for (int64_t t = 0; t < c.T; ++t) {
      const int64_t ahead = c.causal ? 0 : std::min(c.T - 1 - t, reach);
      pairs += static_cast<double>(std::min(t, reach) + ahead + 1);
    }
  }
  const auto B = static_cast<double>(c.B);
  const auto columns = static_cast<double>(c.D + c.H);
  const double wide = B * static_cast<double>(c.T * c.D);  // of q, v, y
  const double keys = B * static_cast<double>(c.T * c.H);
  Work w{sizeof(float) * (3 * wide + keys), 2 * B * pairs * columns,
         wide + keys};
  if (pass == Pass::kForwardBackward) {
    w.bytes += sizeof(float) * (5 * wide + 2 * keys);
    w.flops *= 3;
    w.exps *= 2;
  }
  return w;
}

}  // namespace aft::cli
