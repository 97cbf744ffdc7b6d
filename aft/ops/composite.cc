// The AFT reduction over blocks of keys, in ATen calls:
//   r_t = sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)
// Outside a row's window, w = 0, and those blocks contribute one running sum.
// Inside it, exp(k_j + w_tj) is factored into a matrix product; if that could
// underflow, the exponents are computed element by element. The choice depends
// only on what the row sees, and no shape depends on the data. A causal row is
// therefore bit-exactly independent of later positions.
#include "aft/ops/composite.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace aft::ops::composite {
namespace {

using at::Tensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kBlock = 128;
/// The product of two factors is safe if the exponents of each span no more
/// than this: exp(-2 * 32) is far above the smallest float, and terms that
/// underflow are negligible compared with it.
constexpr double kSpread = 32;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

int64_t blocks(int64_t n) { return (n + kBlock - 1) / kBlock; }
Range block(int64_t i, int64_t n) {
  return {i * kBlock, std::min((i + 1) * kBlock, n)};
}
Tensor cut(const Tensor& x, Range at, int64_t dim = 1) {
  return x.narrow(dim, at.begin, at.size());
}
/// -inf marks an empty maximum. It must not be subtracted as a reference.
Tensor finite(const Tensor& x) { return x.masked_fill(x == -kInf, 0); }

/// The arguments, with tensors as [G, T, B, channels]. In conv, each of the G =
/// H heads has its own bias; otherwise G = 1.
struct BlockProblem {
  const Bias& bias;
  bool causal;
  int64_t B, Tq, Tk, G, limit;  // limit: elements per temporary block
  Tensor k, v;  // k: in conv one channel per head, else D; -inf if padded
  // Row block i is paired with each of the key blocks [i - before, i + after],
  // hence key block j with the row blocks [j - after, j + before]. For all
  // other pairs w = 0.
  int64_t before, after;
  BlockProblem(const Tensor& keys, const Tensor& values, const Tensor& padded,
               const Bias& how, int64_t rows, bool is_causal)
      : bias(how), causal(is_causal), B(keys.size(0)), Tq(rows) {
    G = bias.grid.empty() ? 1 : keys.size(2);
    Tk = keys.size(1);
    limit = std::max<int64_t>(1 << 19, values.numel() / 4);
    k = inward(keys);
    v = inward(values);
    if (padded.defined()) {
      k = k.masked_fill(padded.t().unsqueeze(-1), -kInf);
      v = v.masked_fill(padded.t().unsqueeze(-1), 0);
    }
    const int64_t all = Tq + Tk;
    int64_t reach = bias.window < 0 ? all : std::min(bias.window - 1, all);
    if (!bias.grid.empty()) reach = 0;
    for (size_t axis = bias.grid.size(), stride = 1; axis-- > 0;) {
      reach +=
          stride * (causal ? bias.w.size(1) - 1 : bias.w.size(axis + 1) / 2);
      stride *= bias.grid[axis];
    }
    before = reach < 0 ? 0 : blocks(reach);
    after = causal ? 0 : reach < 0 ? -1 : before;
  }
  Tensor inward(const Tensor& x) const {  // from [B, T, channels]
    const int64_t T = x.size(1), C = x.size(2) / G;
    return x.view({B, T, G, C}).permute({2, 1, 0, 3}).contiguous();
  }
  Tensor per_head(const Tensor& x) const {  // sums over the channels of a head
    return bias.grid.empty() ? x : x.sum(-1, true);
  }
  Tensor outward(const Tensor& x) const {
    return x.permute({2, 1, 0, 3}).flatten(2).contiguous();
  }
};

/// exp(m) n and exp(m) d per position, usually sums of such terms. m is an
/// integer, so that adding and subtracting it does not round, even around 1e4.
/// The empty sum is -inf, 0, 0.
struct State {
  Tensor m, n, d;
};

State cut(const State& x, Range at) {
  return {cut(x.m, at), cut(x.n, at), cut(x.d, at)};
}

State nothing(const Tensor& e, const Tensor& x, int64_t T) {
  const Tensor m = e.new_full({e.size(0), T, e.size(2), e.size(3)}, -kInf);
  return {m, x.new_zeros({x.size(0), T, x.size(2), x.size(3)}),
          at::zeros_like(m)};
}

void merge(const State& into, const State& part) {
  const Tensor m = at::maximum(into.m, part.m), reference = finite(m);
  const Tensor old = (into.m - reference).exp_();
  const Tensor fresh = (part.m - reference).exp_();
  into.m.copy_(m);
  into.n.mul_(old).addcmul_(part.n, fresh);
  into.d.mul_(old).addcmul_(part.d, fresh);
}

/// Adds to every row of block i the sums of x over the blocks up to i - gap or,
/// if from_end, over those from i + gap on.
void add_far(const State& rows, const State& x, int64_t gap, bool from_end) {
  const int64_t Tr = rows.m.size(1), Tx = x.m.size(1), n = blocks(Tx);
  if (gap >= std::max(blocks(Tr), n)) return;
  const State sum = nothing(x.m, x.n, 1);
  for (int64_t step = 0; step < n; ++step) {
    const int64_t j = from_end ? n - 1 - step : step;
    const State y = cut(x, block(j, Tx));
    const Tensor m = y.m.amax(1, true).ceil_();
    const Tensor share = (y.m - finite(m)).exp_();
    merge(sum, {m, (share * y.n).sum(1, true), (share * y.d).sum(1, true)});
    Range t = block(from_end ? j - gap : j + gap, Tr);
    if (step == n - 1 && !from_end) t.end = Tr;
    if (t.begin >= 0 && t.size() > 0) merge(cut(rows, t), sum);
  }
}

/// Rows t and one block of keys j. diagonal: keys after a row are masked.
/// check: some keys are too far from the reference for a safe product.
struct Pair {
  Range t, j;
  bool diagonal, check;
};

/// Where w applies: inside [t, j] (undefined: everywhere) and, in conv, the
/// flat index of the tap of each pair [t * j] (0 outside).
struct PairWindow {
  Tensor row, key, inside, tap;
  PairWindow(const BlockProblem& p, const Pair& pair) {
    const auto index = p.k.options().dtype(at::kLong);
    const Bias& bias = p.bias;
    row = at::arange(pair.t.begin, pair.t.end, index).unsqueeze(1);
    key = at::arange(pair.j.begin, pair.j.end, index);
    if (bias.window >= 0) inside = (row - key).abs() < bias.window;
    if (bias.grid.empty()) return;
    tap = at::zeros({row.numel(), key.numel()}, index);
    inside = tap == 0;
    int64_t stride = 1, taps = 1;
    for (size_t axis = bias.grid.size(); axis-- > 0;) {
      const int64_t size = bias.w.size(axis + 1);
      const auto place = [&](const Tensor& x) {
        return x.div(stride, "floor").remainder(bias.grid[axis]);
      };
      const Tensor a =
          place(key) - place(row) + (p.causal ? size - 1 : size / 2);
      inside.logical_and_(a >= 0).logical_and_(a < size);
      tap.add_(a, taps);
      stride *= bias.grid[axis];
      taps *= size;
    }
    tap = tap.masked_fill_(~inside, 0).flatten();
  }
};

/// w_tj for the block, [G, t, j].
Tensor bias_block(const BlockProblem& p, const PairWindow& window,
                  const Pair& pair) {
  const Bias& bias = p.bias;
  Tensor w;
  if (window.tap.defined()) {
    w = bias.w.flatten(1).index_select(1, window.tap);
    w = w.view({p.G, pair.t.size(), pair.j.size()});
  } else if (bias.w.defined()) {
    w = cut(cut(bias.w, pair.t, 0), pair.j).unsqueeze(0);
  } else if (bias.u.defined()) {
    w = cut(bias.u, pair.t, 0).mm(cut(bias.v_pos, pair.j, 0).t()).unsqueeze(0);
  } else {
    w = p.k.new_zeros({1, pair.t.size(), pair.j.size()});
  }
  if (!window.inside.defined()) return w;
  return w.masked_fill(~window.inside, bias.window_only ? -kInf : 0);
}

/// The backward of bias_block: adds dw [G, t, j] to the gradients.
void add_bias_gradient(const BlockProblem& p, const PairWindow& window,
                       const Pair& pair, Tensor dw, const Gradients& out) {
  if (window.inside.defined()) dw = dw.masked_fill(~window.inside, 0);
  if (window.tap.defined()) {
    out.dw.flatten(1).index_add_(1, window.tap, dw.flatten(1));
  } else if (out.dw.defined()) {
    cut(cut(out.dw, pair.t, 0), pair.j).add_(dw[0]);
  } else {
    cut(out.du, pair.t, 0).addmm_(dw[0], cut(p.bias.v_pos, pair.j, 0));
    cut(out.dv_pos, pair.j, 0).addmm_(dw[0].t(), cut(p.bias.u, pair.t, 0));
  }
}

/// The reference that keys of a block are relative to: their maximum. On the
/// diagonal, rows must not depend on later keys, so the reference is derived
/// from the first key, which all of these rows see.
Tensor reference_of(const Tensor& k, bool diagonal) {
  return diagonal ? finite(k.narrow(1, 0, 1).ceil()) + kSpread / 2
                  : finite(k.amax(1, true).ceil_());
}
Tensor strays(const Tensor& k, const Tensor& reference) {
  const Tensor gap = reference - k;
  return (gap < 0) | (gap > kSpread + 1);
}

template <class Visit>
void for_each_pair(const BlockProblem& p, const Visit& visit) {
  std::vector<Tensor> stray = {at::zeros({}, p.k.options().dtype(at::kBool))};
  for (int64_t i = 0; i < 2 * blocks(p.Tk); ++i) {
    const Tensor k = cut(p.k, block(i / 2, p.Tk));
    stray.push_back(strays(k, reference_of(k, i % 2 == 1)).any());
  }
  const Tensor checks = at::stack(stray).cpu();  // one transfer for all blocks
  const int64_t step = std::max<int64_t>(p.limit / (p.G * kBlock), 1);
  for (int64_t j = 0; j < blocks(p.Tk); ++j) {
    const bool* check = checks.data_ptr<bool>() + 1 + 2 * j;
    const int64_t end = std::min((j + 1 + p.before) * kBlock, p.Tq);
    const int64_t corner = p.causal ? std::min((j + 1) * kBlock, end) : 0;
    Range t{std::max<int64_t>(j - p.after, 0) * kBlock, 0};
    for (; t.begin < end; t.begin = t.end) {
      const bool diagonal = t.begin < corner;
      t.end = std::min(t.begin + step, diagonal ? corner : end);
      visit(Pair{t, block(j, p.Tk), diagonal, check[diagonal]});
    }
  }
}

/// exp(k_j + w_tj) = row_tj key_j exp(top_t + reference).
struct Factors {
  const BlockProblem& p;
  PairWindow window;
  Tensor k, v, w;    // of the block; w [G, t, j] is -inf if masked
  Tensor row, key;   // [G, t, j], [G, j, B, channels of k]
  Tensor top;        // [G, t, 1, 1]; -inf if a row sees no key
  Tensor reference;  // [G, 1, B, channels of k]
  Tensor logspace;   // [t]: rows for which this is not safe; or undefined
  Factors(const BlockProblem& problem, const Pair& pair)
      : p(problem), window(p, pair), k(cut(p.k, pair.j)), v(cut(p.v, pair.j)) {
    const Tensor unseen = pair.diagonal ? window.key > window.row : Tensor();
    w = bias_block(p, window, pair);
    if (pair.diagonal) w = w.masked_fill(unseen, -kInf);
    const Tensor largest = w.amax(-1, true).ceil_();
    top = largest.unsqueeze(-1);
    row = (w - finite(largest)).exp_();
    reference = reference_of(k, pair.diagonal);
    key = (k - reference).clamp_max_(0).exp_();
    if (!pair.check) return;
    // Some keys are far from the reference. But if the biases of a row are
    // close together, its largest exponents are still those of the largest
    // keys.
    const Tensor low = pair.diagonal ? w.masked_fill(unseen, kInf) : w;
    logspace = (low.amin(-1, true) < largest - kSpread).flatten(1).any(0);
    if (!pair.diagonal) return;
    const auto seen = [&](const Tensor& which) {  // [G, j, B, ...] to [t]
      return (which.transpose(0, 1).flatten(1).any(1) & ~unseen).any(1);
    };
    const Tensor gone = k == -kInf;
    logspace = (logspace & seen(gone)) | seen(strays(k, reference) & ~gone);
  }

  /// Calls visit(t, which, x, own) for ranges t that contain log-space rows,
  /// which are marked by `which`. x = k_j + w_tj - own_t is computed element by
  /// element, [G, t, j, B, ...]. own [G, t, B, ...] is the largest visible key,
  /// which minimises rounding.
  template <class Visit>
  void for_each_logspace(const Visit& visit) const {
    if (!logspace.defined()) return;
    const Tensor flags = logspace.cpu();
    const bool* flag = flags.data_ptr<bool>();
    const int64_t T = flags.numel(), step = p.limit / (v.numel() + 1) + 1;
    for (Range t{0, 0}; t.begin < T; t.begin = t.end) {
      t.end = std::min(t.begin + step, T);
      if (std::count(flag + t.begin, flag + t.end, true) == 0) continue;
      const Tensor bias = cut(w, t).unsqueeze(-1).unsqueeze(-1);
      const Tensor x = k.unsqueeze(1).masked_fill(bias == -kInf, -kInf);
      const Tensor own = finite(x.amax(2, true).ceil_());
      visit(t, cut(logspace, t, 0).view({1, t.size(), 1, 1}),
            (x - own).add_(bias), own.squeeze(2));
    }
  }
};

/// [G, t, j] times [G, j, B, x].
Tensor times(const Tensor& a, const Tensor& x) {
  return at::bmm(a, x.flatten(2)).unflatten(2, {x.size(2), x.size(3)});
}

void forward_pair(const BlockProblem& p, const Pair& pair, const State& sum) {
  const Factors f(p, pair);
  const State part{f.reference + f.top, times(f.row, f.key * f.v),
                   times(f.row, f.key)};
  // If all keys are padded, the reference must not dominate other blocks.
  part.m.masked_fill_(part.d == 0, -kInf);
  f.for_each_logspace([&](Range t, Tensor which, Tensor x, Tensor own) {
    const Tensor top = x.amax(2, true).ceil_();
    x.sub_(finite(top)).exp_();
    const State rows = cut(part, t);
    rows.m.copy_(at::where(which, top.squeeze(2) + own, rows.m));
    rows.n.copy_(at::where(which, (x * f.v.unsqueeze(1)).sum(2), rows.n));
    rows.d.copy_(at::where(which, x.sum(2), rows.d));
  });
  merge(cut(sum, pair.t), part);
}

/// The sums for all rows: den = exp(m) d.
State reduce(const BlockProblem& p) {
  const State sum = nothing(p.k, p.v, p.Tq);
  if (!p.bias.window_only) {
    const State keys{p.k, p.v, p.k.new_ones({1}).expand_as(p.k)};
    add_far(sum, keys, p.before + 1, false);
    if (!p.causal) add_far(sum, keys, p.after + 1, true);
  }
  for_each_pair(p, [&](const Pair& pair) { forward_pair(p, pair, sum); });
  return sum;
}

/// The weight of key j in row t, times dr_t, is exp(k_j + w_tj + m_t) n_t. With
/// d_t the sum of n_t r_t over a head, and sums over t:
///   dv_j = sum of exp(...) n_t,  dk_j = v_j dv_j - sum of exp(...) d_t
void backward_pair(const BlockProblem& p, const Pair& pair, const State& rows,
                   const Tensor& r, const Gradients& out) {
  const Factors f(p, pair);
  const State x = cut(rows, pair.t);
  const bool wants_k = out.dk.defined(), wants_v = out.dv.defined();
  const auto add = [&](const Tensor& to, const Tensor& part) {
    if (to.defined()) cut(to, pair.j).add_(part);
  };
  // At most exp(2 kSpread + 3) if the product is safe. A row that sees only
  // padded keys may exceed this, but it contributes 0.
  const Tensor scale =
      (f.reference + f.top + x.m).clamp_max_(2 * kSpread + 4).exp_();
  if (f.logspace.defined())
    scale.masked_fill_(f.logspace.view({1, -1, 1, 1}), 0);
  const Tensor n = scale * x.n, d = scale.mul_(x.d);
  if (wants_k || wants_v) {
    const Tensor share = times(f.row.transpose(1, 2), n).mul_(f.key);
    add(out.dv, share);
    if (wants_k) {
      add(out.dk, p.per_head(share * f.v));
      add(out.dk, times(f.row.transpose(1, 2), d).mul_(f.key).neg_());
    }
  }
  Tensor dw;
  if (out.dw.defined() || out.du.defined()) {
    dw = at::bmm(n.flatten(2), (f.key * f.v).flatten(2).transpose(1, 2));
    dw.baddbmm_(d.flatten(2), f.key.flatten(2).transpose(1, 2), 1, -1);
    dw.mul_(f.row);
  }
  f.for_each_logspace([&](Range t, Tensor which, Tensor e, Tensor own) {
    e.add_((own + cut(x.m, t)).unsqueeze(2)).exp_();
    const Tensor a = (cut(x.n, t) * which).unsqueeze(2);
    if (wants_v) add(out.dv, (e * a).sum(1));
    if (!wants_k && !dw.defined()) return;
    const Tensor off = f.v.unsqueeze(1) - cut(cut(r, pair.t), t).unsqueeze(2);
    e.mul_(p.per_head(off.mul_(a)));
    if (wants_k) add(out.dk, e.sum(1));
    if (dw.defined()) cut(dw, t).add_(e.sum({3, 4}));
  });
  if (dw.defined()) add_bias_gradient(p, f.window, pair, dw, out);
}

}  // namespace

Reduced forward(const Tensor& k, const Tensor& v, const Tensor& padded,
                const Bias& bias, int64_t Tq, bool causal) {
  const at::NoGradGuard no_grad;
  const BlockProblem p(k, v, padded, bias, Tq, causal);
  const State sum = reduce(p);
  const Tensor lse = p.outward(sum.m + sum.d.log());
  return {p.outward(sum.n.div_(sum.d.masked_fill_(sum.d == 0, 1))), lse};
}

Gradients backward(const Tensor& dr, const Tensor& k, const Tensor& v,
                   const Tensor& padded, const Bias& bias, bool causal,
                   const Tensor& r, const Tensor& lse, const Wanted& wanted) {
  const at::NoGradGuard no_grad;
  const BlockProblem p(k, v, padded, bias, r.size(1), causal);
  const Tensor rows = p.inward(r);
  State x{-p.inward(lse), p.inward(dr), {}};
  // A large log den has too few fractional bits to be used as an exponent.
  if (((x.m.abs() > kSpread) & x.m.isfinite()).any().item<bool>()) {
    const State sum = reduce(p);
    x.m = -sum.m;
    x.n = x.n / sum.d.masked_fill(sum.d == 0, 1);
  }
  x.m.masked_fill_(x.m == kInf, -kInf);  // rows without keys give nothing
  x.d = p.per_head(x.n * rows);
  Gradients out;
  if (wanted.k || wanted.v) {
    const State far = nothing(p.k, p.v, p.Tk);
    if (!bias.window_only) {
      add_far(far, x, p.before + 1, true);
      if (!causal) add_far(far, x, p.after + 1, false);
    }
    const Tensor share = (p.k + far.m).exp_(), dv = far.n.mul_(share);
    if (wanted.k) out.dk = p.per_head(dv * p.v) - far.d.mul_(share);
    if (wanted.v) out.dv = dv;
  }
  if (wanted.bias) {
    if (bias.w.defined()) out.dw = at::zeros(bias.w.sizes(), k.options());
    if (bias.u.defined()) out.du = at::zeros_like(bias.u);
    if (bias.u.defined()) out.dv_pos = at::zeros_like(bias.v_pos);
  }
  for_each_pair(p, [&](const Pair& at) { backward_pair(p, at, x, rows, out); });
  if (wanted.k) out.dk = p.outward(out.dk);
  if (wanted.v) out.dv = p.outward(out.dv);
  return out;
}

}  // namespace aft::ops::composite
