// Invalid arguments: the error names the operator, the argument, what was
// expected and what was found.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "aft/ops/stream.h"
#include "tests/ops/calls.h"

namespace aft::ops {
namespace {

Tensor ones(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::ones(shape, type);
}
Tensor meta(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions(at::kFloat).device(at::kMeta));
}

/// f must throw a c10::Error whose message has all of the words.
void expect_error(const std::function<void()>& f,
                  const std::vector<std::string>& words) {
  try {
    f();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos)
          << "'" << word << "' is not in: " << message;
    }
    // A short message.
    EXPECT_LE(message.size(), 300u) << message;
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error, expected one with '" << words[0] << "' and '"
                << words[1] << "'";
}

const Tensor k = ones({2, 6, 4}), v = ones({2, 6, 4}), q = ones({2, 6, 4});
const Tensor u = ones({6, 3}), v_pos = ones({6, 3}), w = ones({6, 6});
const Tensor heads = ones({2, 6, 2}), taps = ones({2, 3});

Common with_mask(const Tensor& mask) {
  Common common;
  common.key_padding_mask = mask;
  return common;
}
Common with_gate(const std::string& gate) {
  Common common;
  common.gate = gate;
  return common;
}
Common causal() {
  Common common;
  common.causal = true;
  return common;
}

/// Calls each operator with these q, k, v and common arguments; the position
/// arguments match k of 6 positions.
struct Named {
  const char* name;
  std::function<Tensor(const OptionalTensor&, const Tensor&, const Tensor&,
                       const Common&)>
      call;
};

const std::vector<Named>& operators() {
  static const std::vector<Named> all = {
      {"aft::simple",
       [](const OptionalTensor& q, const Tensor& k, const Tensor& v,
          const Common& c) { return simple(q, k, v, c); }},
      {"aft::full",
       [](const OptionalTensor& q, const Tensor& k, const Tensor& v,
          const Common& c) {
         return full(q, k, v, {u, v_pos, {}}, c);
       }},
      {"aft::local",
       [](const OptionalTensor& q, const Tensor& k, const Tensor& v,
          const Common& c) {
         return local(q, k, v, 2, {{}, {}, w}, false, c);
       }},
      {"aft::conv", [](const OptionalTensor& q, const Tensor& k,
                       const Tensor& v, const Common& c) {
         return conv(q, k, v, ones({k.dim() == 3 ? k.size(2) : 4, 3}), {6},
                     false, c);
       }}};
  return all;
}

TEST(Error, ShapesOfKeysValuesAndQueries) {
  for (const Named& op : operators()) {
    SCOPED_TRACE(op.name);
    const auto call = [&](const Tensor& q_, const Tensor& k_,
                          const Tensor& v_) {
      return [=] { op.call(q_, k_, v_, {}); };
    };
    expect_error(call(q, ones({6, 4}), v),
                 {op.name, " k ", "[B, T,", "[6, 4]"});
    expect_error(call(q, k, ones({6, 4})),
                 {op.name, " v ", "[B, T, D]", "[6, 4]"});
    expect_error(call(q, k, ones({3, 6, 4})),
                 {op.name, " v ", "[2, 6, 4]", "[3, 6, 4]"});
    expect_error(call(q, k, ones({2, 5, 4})),
                 {op.name, " v ", "[2, 6, 4]", "[2, 5, 4]"});
    expect_error(call(ones({6, 4}), k, v),
                 {op.name, " q ", "[B, T, D]", "[6, 4]"});
    expect_error(call(ones({3, 6, 4}), k, v),
                 {op.name, " q ", "[2, T, 4]", "[3, 6, 4]"});
    expect_error(call(ones({2, 6, 5}), k, v),
                 {op.name, " q ", "[2, T, 4]", "[2, 6, 5]"});
    expect_error(call(q, Tensor(), v), {op.name, "k and v", "undefined"});
    expect_error(call(q, k, Tensor()), {op.name, "k and v", "undefined"});
    if (std::string(op.name) != "aft::conv") {
      expect_error(call(q, ones({2, 6, 2}), v),
                   {op.name, " k ", "[2, 6, 4]", "[2, 6, 2]"});
    }
  }
}

TEST(Error, TypesAndDevices) {
  for (const Named& op : operators()) {
    SCOPED_TRACE(op.name);
    const auto call = [&](const Tensor& q_, const Tensor& k_,
                          const Tensor& v_) {
      return [=] { op.call(q_, k_, v_, {}); };
    };
    expect_error(call(q, ones({2, 6, 4}, at::kInt), ones({2, 6, 4}, at::kInt)),
                 {op.name, " k ", "float", "Int"});
    expect_error(call(q, k, ones({2, 6, 4}, at::kDouble)),
                 {op.name, " v ", "Float", "Double"});
    expect_error(call(ones({2, 6, 4}, at::kHalf), k, v),
                 {op.name, " q ", "Float", "Half"});
    expect_error(call(q, k, ones({2, 6, 4}, at::kComplexFloat)),
                 {op.name, " v ", "Float", "ComplexFloat"});
    expect_error(call(q, k, meta({2, 6, 4})), {op.name, " v ", "cpu", "meta"});
    expect_error(call(meta({2, 6, 4}), k, v), {op.name, " q ", "cpu", "meta"});
    expect_error(call(q, meta({2, 6, 4}), v), {op.name, "cpu", "meta"});
  }
}

TEST(Error, Masks) {
  for (const Named& op : operators()) {
    SCOPED_TRACE(op.name);
    const auto call = [&](const Tensor& mask) {
      return [=] { op.call(q, k, v, with_mask(mask)); };
    };
    const char* const name = "key_padding_mask";
    expect_error(call(ones({2, 6})), {op.name, name, "bool", "Float"});
    expect_error(call(ones({2, 6}, at::kByte)),
                 {op.name, name, "bool", "Byte"});
    expect_error(call(ones({2, 5}, at::kBool)),
                 {op.name, name, "[2, 6]", "[2, 5]"});
    expect_error(call(ones({6}, at::kBool)), {op.name, name, "[2, 6]", "[6]"});
    expect_error(call(ones({2, 6, 4}, at::kBool)),
                 {op.name, name, "[2, 6]", "[2, 6, 4]"});
    expect_error(call(meta({2, 6}).to(at::kBool)),
                 {op.name, name, "cpu", "meta"});
  }
}

TEST(Error, Gates) {
  for (const Named& op : operators()) {
    for (const char* gate : {"sigmoyd", "", "Sigmoid"}) {
      expect_error([&] { op.call(q, k, v, with_gate(gate)); },
                   {op.name, "gate", "sigmoid", "softplus",
                    "'" + std::string(gate) + "'"});
    }
  }
}

TEST(Error, PositionBiases) {
  using Bias = PositionBias;
  const auto both = [](const Bias& bias, std::vector<std::string> words) {
    const auto named = [&](const char* op) {
      std::vector<std::string> all = words;
      all.insert(all.begin(), op);
      return all;
    };
    expect_error([&] { full(q, k, v, bias); }, named("aft::full"));
    expect_error([&] { local(q, k, v, 2, bias); }, named("aft::local"));
  };
  const OptionalTensor none;
  both({none, none, none}, {"u", "v_pos", "w", "none of them"});
  both({u, none, none}, {"u alone", "v_pos"});
  both({none, v_pos, none}, {"v_pos alone", "u"});
  both({u, v_pos, w}, {"u", "v_pos", "w", "both"});
  both({u, none, w}, {"u", "w", "both"});
  both({ones({5, 3}), v_pos, none}, {" u ", "[6, r]", "[5, 3]"});
  both({ones({6}), v_pos, none}, {" u ", "[6, r]", "[6]"});
  both({u, ones({5, 3}), none}, {" v_pos ", "[6, 3]", "[5, 3]"});
  both({u, ones({6, 2}), none}, {" v_pos ", "[6, 3]", "[6, 2]"});
  both({none, none, ones({6, 5})}, {" w ", "[6, 6]", "[6, 5]"});
  both({none, none, ones({6})}, {" w ", "[6, 6]", "[6]"});
  both({none, none, ones({2, 6, 6})}, {" w ", "[6, 6]", "[2, 6, 6]"});
  both({none, none, ones({6, 6}, at::kLong)}, {" w ", "floating", "Long"});
  both({none, none, meta({6, 6})}, {" w ", "cpu", "meta"});
  both({meta({6, 3}), v_pos, none}, {" u ", "cpu", "meta"});
}

TEST(Error, Windows) {
  const PositionBias bias{{}, {}, w};
  expect_error([&] { local(q, k, v, -1, bias); },
               {"aft::local", "window", "0 or more", "-1"});
  expect_error(
      [&] { local(q, k, v, std::numeric_limits<int64_t>::min(), bias); },
      {"aft::local", "window", "0 or more"});
  expect_error([&] { local(q, k, v, 0, bias, true); },
               {"aft::local", "window_only", "1 or more", "0"});
  // A window may be arbitrarily large.
  const Tensor widest =
      local(q, k, v, std::numeric_limits<int64_t>::max(), bias);
  EXPECT_TRUE(at::equal(widest, full(q, k, v, bias)));
}

TEST(Error, ConvGridsAndKernels) {
  const auto call = [](const Tensor& k_, const Tensor& w_,
                       std::vector<int64_t> grid, const Common& common = {}) {
    return [=] { conv(q, k_, v, w_, grid, false, common); };
  };
  const char* const op = "aft::conv";
  expect_error(call(ones({2, 6, 3}), ones({3, 3}), {6}),
               {op, "heads", "divide", "3", "4"});
  expect_error(call(ones({2, 6, 8}), ones({8, 3}), {6}),
               {op, "heads", "divide", "8", "4"});
  expect_error(call(heads, taps, {5}), {op, "grid", "6", "5"});
  expect_error(call(heads, ones({2, 3, 3}), {2, 2}),
               {op, "grid", "6", "[2, 2]", "4"});
  expect_error(call(heads, ones({2, 3, 3}), {6, 0}),
               {op, "grid", "1", "[6, 0]"});
  expect_error(call(heads, ones({2, 3, 3}), {-2, -3}),
               {op, "grid", "[-2, -3]"});
  expect_error(call(heads, taps, {}), {op, "grid", "1, 2 or 3", "0"});
  expect_error(call(heads, taps, {1, 1, 2, 3}), {op, "grid", "1, 2 or 3", "4"});
  expect_error(call(heads, ones({2, 4}), {6}), {op, "w", "odd", "4", "[2, 4]"});
  expect_error(call(heads, ones({2, 3, 2}), {2, 3}),
               {op, "w", "odd", "2", "[2, 3, 2]"});
  expect_error(call(heads, ones({2, 0}), {6}),
               {op, "w", "1 or more", "[2, 0]"});
  expect_error(call(heads, ones({3, 3}), {6}), {op, "w", "[2,", "[3, 3]"});
  expect_error(call(heads, taps, {2, 3}),
               {op, "w", "2 kernel sizes", "[2, 3]"});
  expect_error(call(heads, Tensor(), {6}), {op, "w", "nothing"});
  expect_error(call(heads, ones({2, 3}, at::kLong), {6}),
               {op, " w ", "floating", "Long"});
  expect_error(call(heads, meta({2, 3}), {6}), {op, " w ", "cpu", "meta"});
  expect_error(call(heads, ones({2, 3, 3}), {2, 3}, causal()),
               {op, "causal", "1 size", "2"});
  expect_error(
      [] {
        conv(ones({2, 5, 4}), heads, v, taps, {6});
      },
      {op, "q", "6", "5"});
  // Even kernel sizes are valid if causal.
  EXPECT_NO_THROW(call(heads, ones({2, 4}), {6}, causal())());
}

TEST(Error, Steps) {
  const auto plain = at::TensorOptions(at::kFloat);
  const char* const op = "aft::step";
  const Tensor x = ones({2, 4}), wide = ones({2, 4}, at::kDouble),
               far = meta({2, 4});
  Stream stream = start_stream(2, 4, 3, plain);
  const auto call = [&](const Tensor& q_, const Tensor& k_, const Tensor& v_,
                        const Tensor& w_ = {}) {
    return [&stream, q_, k_, v_, w_] { step(stream, q_, k_, v_, w_); };
  };
  expect_error(call(x, Tensor(), x), {op, " k ", "[2, 4]", "nothing"});
  expect_error(call(x, x, Tensor()), {op, " v ", "[2, 4]", "nothing"});
  expect_error(call(x, ones({2, 5}), x), {op, " k ", "[2, 4]", "[2, 5]"});
  expect_error(call(far, x, x), {op, " q ", "cpu", "meta"});
  expect_error(call(x, far, x), {op, " k ", "cpu", "meta"});
  expect_error(call(x, x, x, meta({1})), {op, " w ", "cpu", "meta"});
  expect_error(call(wide, x, x), {op, " q ", "Float", "Double"});
  expect_error(call(x, x, wide), {op, " v ", "Float", "Double"});
  expect_error(call(x, ones({2, 4}, at::kInt), x), {op, " k ", "Float", "Int"});
  expect_error(call(x, x, x, ones({1}, at::kLong)),
               {op, " w ", "Float", "Long"});
  expect_error(call(x, x, x, ones({2})), {op, " w ", "count = 1", "[2]"});
  EXPECT_EQ(stream.position, 0);
  EXPECT_NO_THROW(call(ones({2, 4}, at::kHalf), x, x)());
  EXPECT_EQ(stream.position, 1);
  stream.ring_k = stream.ring_k.to(at::kDouble);
  expect_error(call(x, x, x), {op, "stream", "Float", "Double"});
  const char* const start = "aft::start_stream";
  expect_error([&] { start_stream(2, 4, 3, plain.dtype(at::kHalf)); },
               {start, "float or double", "Half"});
  expect_error([&] { start_stream(0, 4, 3, plain); }, {start, "0, 4 and 3"});
  expect_error([&] { start_stream(2, 4, -1, plain); }, {start, "2, 4 and -1"});
}

// The schemas reject invalid arguments as well.
TEST(Error, ThroughTheDispatcher) {
  for (Call call : calls(false)) {
    SCOPED_TRACE(call.name);
    const Tensors t = tensors(call, at::kFloat);
    expect_error([&] { dispatch(call, t, "nothing"); },
                 {"aft::", "gate", "sigmoid", "'nothing'"});
  }
}

// On a device without data: an error or a tensor without data, but no crash.
TEST(Error, TensorsWithoutData) {
  for (const Named& op : operators()) {
    SCOPED_TRACE(op.name);
    try {
      const Tensor y =
          op.call(meta({2, 6, 4}), meta({2, 6, 4}), meta({2, 6, 4}), {});
      EXPECT_TRUE(y.is_meta());
      EXPECT_EQ(y.sizes(), q.sizes());
    } catch (const c10::Error& error) {
      EXPECT_GT(std::string(error.what_without_backtrace()).size(), 0u);
    }
  }
}

}  // namespace
}  // namespace aft::ops
