// `aft demo`: checks each of the four operators against the paper's equations
// as plain double loops (aft/kernels/reference.h), then compares it with
// attention on a longer sequence. Takes a few seconds.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "aft/base/counted.h"
#include "aft/kernels/reference.h"
#include "cli/commands.h"
#include "cli/measure/cases.h"
#include "cli/measure/measure.h"
#include "cli/measure/rivals.h"
#include "cli/measure/timing.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

using Values = std::vector<double>;

Values values(const at::Tensor& x) {
  const at::Tensor d = x.to(at::kDouble).contiguous();
  return {d.data_ptr<double>(), d.data_ptr<double>() + d.numel()};
}

/// The largest difference, relative to the largest value.
double error(const at::Tensor& got, const Values& expected) {
  const Values x = values(got);
  double difference = 0, scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(x[i] - expected[i]));
    scale = std::max(scale, std::abs(expected[i]));
  }
  return difference / scale;
}

struct Errors {
  double y, gradients;
};

/// The errors of y and of the gradients of q, k, v and the biases, relative to
/// the reference implementation.
Errors errors(const Case& c) {
  const Data data = make_data(c);
  const std::vector<at::Tensor> got =
      aft_side(c, data).run(Pass::kForwardBackward);

  const Values q = values(data.q), k = values(data.k), v = values(data.v);
  std::vector<Values> bias;
  for (const at::Tensor& x : data.bias) bias.push_back(values(x));
  const reference::Shape shape{c.B, c.T, c.T, c.D, c.H, c.causal};
  const reference::Inputs in{q.data(), k.data(), v.data(), nullptr};
  reference::Bias w = reference::simple_bias();
  reference::BiasGradient take;
  Values dense, dw;
  if (c.variant == "conv") {
    const reference::Grid grid{
        c.grid, std::vector<int64_t>(c.grid.size(), c.window), c.causal};
    dw.resize(bias[0].size());
    w = reference::conv_bias(bias[0].data(), grid);
    take = reference::conv_gradient(dw.data(), grid);
  } else if (c.variant != "simple") {
    dense =
        reference::factorised(bias[0].data(), bias[1].data(), c.T, c.T, c.rank);
    dw.resize(dense.size());
    const int64_t window = c.variant == "full" ? c.T : c.window;
    w = reference::local_bias(dense.data(), c.T, window, false);
    take = reference::local_gradient(dw.data(), c.T, window);
  }
  Values y(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
  reference::forward(shape, in, w, y.data());
  reference::backward(shape, in, w, values(data.dy).data(),
                      {dq.data(), dk.data(), dv.data(), take});
  std::vector<Values> expected = {dq, dk, dv};
  if (c.variant == "conv") {
    expected.push_back(dw);
  } else if (c.variant != "simple") {
    Values du(bias[0].size()), dv_pos(bias[1].size());
    reference::factorised_backward(dw.data(), bias[0].data(), bias[1].data(),
                                   c.T, c.T, c.rank, du.data(), dv_pos.data());
    expected.push_back(du);
    expected.push_back(dv_pos);
  }
  Errors e{error(got[0], y), 0};
  for (size_t i = 0; i < expected.size(); ++i) {
    e.gradients = std::max(e.gradients, error(got[i + 1], expected[i]));
  }
  return e;
}

std::string scientific(double x) {
  char text[32];
  snprintf(text, sizeof(text), "%.1e", x);
  return text;
}

void demo() {
  struct Item {
    Case small, large;
  };
  const std::vector<Item> items = {
      {simple_case(2, 128, 32), simple_case(1, 2048, 256)},
      {local_case(2, 128, 32, 16, 8), local_case(1, 2048, 256, 32, 64)},
      {full_case(2, 128, 32, 8, true), full_case(1, 2048, 256, 64, true)},
      {conv2d_case(2, 12, 32, 8, 5), conv2d_case(1, 45, 256, 8, 11)},
  };
  std::vector<std::vector<std::string>> exact, cost;
  {
    Progress progress(2 * items.size());
    for (const Item& item : items) {
      progress.next(item.small.name() + " compared with the reference");
      const Errors e = errors(item.small);
      exact.push_back({item.small.variant, item.small.name(), scientific(e.y),
                       scientific(e.gradients)});
    }
    for (const Item& item : items) {
      const Case& c = item.large;
      progress.next(c.name() + " compared with attention");
      const Data data = make_data(c);
      const Side ours = aft_side(c, data);
      const Side attention = attention_side(c, data);
      Repeat repeat;
      repeat.fixed = 3;
      const Pass both = Pass::kForwardBackward;
      const std::vector<double> ms = interleave(
          {[&] { ours.run(both); }, [&] { attention.run(both); }}, repeat);
      const auto mine = peak_bytes(c, "aft", both);
      const auto theirs = peak_bytes(c, "attention", both);
      const auto mb = [](const std::optional<double>& bytes) {
        return bytes ? number(*bytes / 1e6) : "-";
      };
      cost.push_back({c.variant, c.name(), number(ms[0]), number(ms[1]),
                      number(ms[1] / ms[0]) + "x", mb(mine), mb(theirs)});
    }
  }
  std::cout
      << "The four operators of the Attention Free Transformer,\n"
         "  y_t = sigmoid(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + "
         "w_tj)\n\n"
         "1. Exact. Largest deviation from the paper's equations in double "
         "precision, relative to the\n   largest value (the rounding error of "
         "float is 6.0e-08):\n\n"
      << table({"operator", "shape", "error of y", "error of gradients"}, exact,
               2)
      << "\n2. Fast, and linear in memory. Forward + backward on "
      << base::counted(at::get_num_threads(), "thread")
      << ", compared with attention\n   (8 heads, in tiles: memory is "
         "linear, too) on the same q, k and v:\n\n"
      << table({"operator", "shape", "ms", "attention ms", "faster", "MB",
                "attention MB"},
               cost, 2)
      << "\nWhat to try next:\n"
         "  aft bench                                  speed and memory of "
         "whole models on this machine\n"
         "  aft-bench ops                              the paper's shapes, "
         "against naive code and the machine's bound\n"
         "  aft-bench ops --scaling --plot cost.svg    chart of time and "
         "memory from 1k to 64k positions\n"
         "aft::nn::AFTLocal (aft/nn/aft.h) replaces attention in C++, "
         "aft.nn.AFTLocal in Python.\n";
}

}  // namespace

void add_demo(CLI::App& app) {
  auto threads = std::make_shared<int>(0);
  CLI::App* command = app.add_subcommand(
      "demo",
      "Show error, time and memory of the four operators next to attention");
  add_threads(*command, *threads);
  command->footer("Example:\n  aft demo --threads 2");
  command->callback([threads] {
    set_threads(*threads);
    demo();
  });
}

}  // namespace aft::cli
