// The oracle against tests/golden/golden.safetensors, computed by
// make_golden.py, an independent implementation of the paper.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "aft/io/safetensors.h"
#include "aft/kernels/reference.h"
#include "tests/cases.h"

namespace aft::reference {
namespace {

using testing::relative_error;
using Numbers = std::vector<double>;

const io::SafeTensors& golden() {
  static const io::SafeTensors file = io::SafeTensors::open(
      std::string(AFT_TEST_DIR) + "/golden/golden.safetensors");
  return file;
}

// One case of the file.
class Golden {
 public:
  explicit Golden(const std::string& name) : name_(name) {}

  bool has(const std::string& tensor) const {
    return golden().find(name_ + "/" + tensor) != nullptr;
  }

  const std::vector<int64_t>& shape(const std::string& tensor) const {
    return golden().at(name_ + "/" + tensor).shape;
  }

  // Empty if the case has no such tensor.
  template <class T = double>
  std::vector<T> read(const std::string& tensor) const {
    if (!has(tensor)) return {};
    const io::TensorView& view = golden().at(name_ + "/" + tensor);
    EXPECT_EQ(view.dtype, sizeof(T) == 1 ? io::DType::kU8 : io::DType::kF64);
    std::vector<T> out(view.bytes / sizeof(T));
    std::memcpy(out.data(), view.data, view.bytes);
    return out;
  }

  const std::string& text(const std::string& setting) const {
    return golden().metadata().at(name_ + "/" + setting);
  }

  int64_t number(const std::string& setting) const {
    return std::stoll(text(setting));
  }

 private:
  std::string name_;
};

std::set<std::string> case_names() {
  std::set<std::string> names;
  for (const auto& entry : golden().metadata()) {
    names.insert(entry.first.substr(0, entry.first.find('/')));
  }
  return names;
}

void check(const Golden& g, double tolerance) {
  const std::string variant = g.text("variant");
  const int64_t window = g.number("window");
  const bool window_only = g.number("window_only") != 0;
  Shape s;
  s.B = g.shape("dy")[0], s.Tq = g.shape("dy")[1], s.D = g.shape("dy")[2];
  s.Tk = g.shape("k")[1], s.H = g.shape("k")[2];
  s.causal = g.number("causal") != 0;

  const Numbers q = g.read("q"), k = g.read("k"), v = g.read("v");
  const Numbers u = g.read("u"), v_pos = g.read("v_pos"), dy = g.read("dy");
  const std::vector<uint8_t> padded = g.read<uint8_t>("padded");
  const int64_t r = u.empty() ? 0 : g.shape("u")[1];
  const Numbers w = u.empty()
                        ? g.read("w")
                        : factorised(u.data(), v_pos.data(), s.Tq, s.Tk, r);
  Numbers dw(w.size(), 0.0);

  Bias bias;
  BiasGradient bias_gradient;
  if (variant == "simple") {
    bias = simple_bias();
  } else if (variant == "full") {
    bias = full_bias(w.data(), s.Tk);
    bias_gradient = full_gradient(dw.data(), s.Tk);
  } else if (variant == "local") {
    bias = local_bias(w.data(), s.Tk, window, window_only);
    bias_gradient = local_gradient(dw.data(), s.Tk, window);
  } else if (variant == "conv") {
    Grid grid;
    std::istringstream sizes(g.text("grid"));
    for (std::string n; std::getline(sizes, n, ',');) {
      grid.size.push_back(std::stoll(n));
    }
    grid.kernel = {g.shape("w").begin() + 1, g.shape("w").end()};
    grid.causal = s.causal;
    grid.window_only = window_only;
    bias = conv_bias(w.data(), grid);
    bias_gradient = conv_gradient(dw.data(), grid);
  } else {
    FAIL() << "unknown variant " << variant;
  }

  const Inputs in = {q.empty() ? nullptr : q.data(), k.data(), v.data(),
                     padded.empty() ? nullptr : padded.data()};
  Numbers y(dy.size()), dq(q.size()), dk(k.size()), dv(v.size());
  forward(s, in, bias, y.data());
  backward(
      s, in, bias, dy.data(),
      {q.empty() ? nullptr : dq.data(), dk.data(), dv.data(), bias_gradient});
  EXPECT_LE(relative_error(y, g.read("y")), tolerance);
  EXPECT_LE(relative_error(dq, g.read("dq")), tolerance);
  EXPECT_LE(relative_error(dk, g.read("dk")), tolerance);
  EXPECT_LE(relative_error(dv, g.read("dv")), tolerance);
  if (!u.empty()) {
    Numbers du(u.size(), 0.0), dv_pos(v_pos.size(), 0.0);
    factorised_backward(dw.data(), u.data(), v_pos.data(), s.Tq, s.Tk, r,
                        du.data(), dv_pos.data());
    EXPECT_LE(relative_error(du, g.read("du")), tolerance);
    EXPECT_LE(relative_error(dv_pos, g.read("dv_pos")), tolerance);
  } else {
    EXPECT_LE(relative_error(dw, g.read("dw")), tolerance);
  }
}

TEST(Golden, HoldsEveryKindOfCase) {
  const std::set<std::string> names = case_names();
  for (const char* name : {"simple",
                           "simple_causal",
                           "simple_no_query",
                           "full",
                           "full_causal",
                           "full_dense_cross",
                           "local",
                           "local_causal",
                           "local_window_only",
                           "local_causal_window_only",
                           "conv_1d",
                           "conv_1d_causal",
                           "conv_2d",
                           "conv_2d_window_only",
                           "conv_3d",
                           "padding",
                           "padding_causal",
                           "padding_conv",
                           "hostile_simple",
                           "hostile_full",
                           "hostile_local"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST(Golden, OracleAgrees) {
  for (const std::string& name : case_names()) {
    SCOPED_TRACE(name);
    // k + w of about 1e4 is rounded to 1e-12, which exp makes relative.
    check(Golden(name), name.rfind("hostile", 0) == 0 ? 1e-11 : 1e-14);
  }
}

}  // namespace
}  // namespace aft::reference
