#include "aft/nn/reformer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "aft/nn/heads.h"
#include "aft/nn/lsh.h"
#include "aft/ops/common.h"
#include "aft/ops/function.h"

namespace aft::nn {
namespace {

using at::Tensor;

/// The score of a position with itself: negligible if there is any other key.
constexpr double kSelf = -1e30;
/// Added under the root that normalises keys, so that a zero query has finite
/// gradients.
constexpr double kTiny = 1e-6;
/// Number of scores, and of rows, processed at once. They stay in the cache,
/// and bound the memory of a round.
constexpr int64_t kScores = 1 << 16, kRows = 1 << 14;

struct Sizes {
  int64_t T, heads, d, rounds, buckets, chunk;
  bool causal;
  double scale() const { return 1 / std::sqrt(static_cast<double>(d)); }
};

Sizes sizes_of(const ReformerImpl& m, int64_t T) {
  const ReformerOptions& o = m.options;
  return {T, o.heads(), o.dim() / o.heads(),
          // With one bucket, all rounds would be equal.
          m.rotations.defined() ? o.rounds() : 1, m.buckets(), o.chunk(),
          o.causal()};
}
/// Converts sizes to a list, which autograd can save.
std::vector<int64_t> pack(const Sizes& s) {
  return {s.T, s.heads, s.d, s.rounds, s.buckets, s.chunk, s.causal};
}
Sizes unpack(const std::vector<int64_t>& x) {
  return {x[0], x[1], x[2], x[3], x[4], x[5], x[6] != 0};
}

/// The factor that turns queries into keys.
Tensor inverse_length(const Tensor& q) {
  return (q * q).sum(-1, true).add_(kTiny).rsqrt_();
}

/// Rows of scaled queries, keys and values.
struct Source {
  Tensor q, k, v;
  Source(const Tensor& queries, const Tensor& values, const Sizes& s)
      : q(queries * s.scale()),
        k(queries * inverse_length(queries)),
        v(values) {}
};

/// n windows of w keys and c queries, which are the positions of the last c
/// keys: k and v [n, w, d], q [n, c, d], scores [n, c, w].
struct Batch {
  int64_t n, w, c;
  int64_t chunk, slot;  ///< the index of the first of each
  Tensor queries;       ///< [n c]: row indices
  Tensor q, k, v, scores;

  /// The columns of the query's own chunk in [n, c, w].
  Tensor own(const Tensor& x) const { return x.narrow(2, w - c, c); }
  /// The queries' rows of x [rows, m], as [n, c, m].
  Tensor take(const Tensor& x) const {
    return take_rows(x, queries).view({n, c, -1});
  }
  /// This batch's part of results that are stored by chunk, or by slot.
  Tensor by_chunk(const Tensor& x) const {
    return x.narrow(0, chunk * c, n * c).view({n, c, -1});
  }
  Tensor by_slot(const Tensor& x) const {
    return x.narrow(0, slot, n * w).view({n, w, -1});
  }
};

/// Calls f(batch) for all windows of a round. Each thread has its own windows,
/// so that no two threads write to the same element, and the small products
/// need no inner threads.
template <class F>
void each_batch(const Windows& windows, const Source& x, const Sizes& s,
                const F& f) {
  const int64_t c = s.chunk;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Tensor later;  // [c, c]: -inf for later keys
  if (s.causal) later = at::full({c, c}, -kInf, x.q.options()).triu_(1);
  const auto make = [&](bool pair, int64_t i, int64_t n) {
    Batch u;
    u.n = n, u.w = pair ? 2 * c : c, u.c = c;
    u.chunk = i + (pair ? windows.alone : 0);
    u.slot = i * u.w + (pair ? windows.alone * c : 0);
    const Tensor keys = windows.keys.narrow(0, u.slot, n * u.w);
    u.queries = keys.view({n, u.w}).narrow(1, u.w - c, c).reshape({n * c});
    u.q = u.take(x.q);
    u.k = take_rows(x.k, keys).view({n, u.w, s.d});
    u.v = take_rows(x.v, keys).view({n, u.w, s.d});
    u.scores = at::bmm(u.q, u.k.transpose(1, 2));
    const Tensor own = u.own(u.scores);
    if (s.causal) own.add_(later);
    own.diagonal(0, 1, 2).fill_(kSelf);
    if (!s.causal)  // if causal, empty slots come after all queries
      own.masked_fill_(u.queries.lt(0).view({n, 1, c}), -kInf);
    return u;
  };
  for (const bool pair : {false, true}) {
    const int64_t all = pair ? windows.pairs : windows.alone;
    const int64_t most =
        std::max<int64_t>(kScores / (c * (pair ? 2 * c : c)), 1);
    const auto run = [&](int64_t begin, int64_t end) {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      for (int64_t i = begin; i < end; i += most)
        f(make(pair, i, std::min(most, end - i)));
    };
    if (x.q.is_cpu())
      at::parallel_for(0, all, most, run);
    else
      run(0, all);
  }
}

Windows windows(const Tensor& buckets, const Sizes& s, const Tensor& q) {
  return windows_of(buckets, s.T, s.heads, s.buckets, s.chunk, q.device());
}

/// q, v and y are rows [B T heads, d]; buckets [rounds, rows]; shares [rounds,
/// rows]: the weights of the rounds.
void attend_rows(const Tensor& q, const Tensor& v, const Tensor& buckets,
                 const Sizes& s, const Tensor& y, const Tensor& shares) {
  const Source x(q, v, s);
  std::vector<Tensor> results;
  for (int64_t r = 0; r < s.rounds; ++r) {
    const Windows all = windows(buckets[r], s, q);
    const Tensor result = at::empty({all.queries(), s.d}, q.options());
    // The largest score and its weight, which give the logsumexp.
    Tensor top = at::empty({all.queries(), 2}, q.options());
    each_batch(all, x, s, [&](const Batch& u) {
      const Tensor weights = u.scores.softmax(-1), to = u.by_chunk(top);
      to.select(2, 0).copy_(u.scores.amax(-1));
      to.select(2, 1).copy_(weights.amax(-1));
      Tensor into = u.by_chunk(result);
      at::bmm_out(into, weights, u.v);
    });
    // Restore the order of the sequence before any operation whose rounding may
    // depend on the position in memory.
    results.push_back(take_rows(result, all.query));
    top = take_rows(top, all.query);
    shares[r].copy_((top.select(1, 0) - top.select(1, 1).log())
                        .masked_fill_(all.query.lt(0), 0));
  }
  shares.copy_(shares.softmax(0));
  y.copy_(results[0].mul_(shares[0].unsqueeze(1)));
  for (int64_t r = 1; r < s.rounds; ++r)
    y.addcmul_(results[r], shares[r].unsqueeze(1));
}

/// The gradients of attend_rows, written to dq and dv.
void attend_rows_backward(const Tensor& q, const Tensor& v,
                          const Tensor& buckets, const Tensor& y,
                          const Tensor& shares, const Tensor& dy,
                          const Sizes& s, const Tensor& dq, const Tensor& dv) {
  const Source x(q, v, s);
  const Tensor dot = (dy * y).sum(-1, true), dk = at::zeros_like(dq);
  dq.zero_(), dv.zero_();
  for (int64_t r = 0; r < s.rounds; ++r) {
    const Windows all = windows(buckets[r], s, q);
    const int64_t slots = all.keys.size(0);
    const Tensor by_query = at::empty({all.queries(), s.d}, q.options()),
                 by_key = at::empty({slots, s.d}, q.options()),
                 by_value = at::empty_like(by_key);
    const Tensor share = shares[r].unsqueeze(1), g = dy * share,
                 mean = dot * share;
    each_batch(all, x, s, [&](const Batch& u) {
      const Tensor weights = u.scores.softmax(-1), du = u.take(g);
      Tensor into = u.by_slot(by_value);
      at::bmm_out(into, weights.transpose(1, 2), du);
      const Tensor ds = at::bmm(du, u.v.transpose(1, 2));
      ds.sub_(u.take(mean)).mul_(weights);
      u.own(ds).diagonal(0, 1, 2).zero_();  // this score is constant
      into = u.by_chunk(by_query);
      at::bmm_out(into, ds, u.k);
      into = u.by_slot(by_key);
      at::bmm_out(into, ds.transpose(1, 2), u.q);
    });
    add_rows(dq, by_query, all.query);
    for (const Tensor& slot : {all.own, all.previous})
      add_rows(dk, by_key, slot), add_rows(dv, by_value, slot);
  }
  // Backward through k = q / sqrt(|q|^2 + tiny).
  dk.sub_(x.k * (x.k * dk).sum(-1, true)).mul_(inverse_length(q));
  dq.mul_(s.scale()).add_(dk);
}

/// Calls f(first row, number of rows) for groups of sequences.
template <class F>
void for_sequences(int64_t rows, const Sizes& s, const F& f) {
  const int64_t one = s.T * s.heads;
  const int64_t most = std::max<int64_t>(kRows / std::max<int64_t>(one, 1), 1);
  for (int64_t i = 0; i < rows; i += most * one)
    f(i, std::min(most * one, rows - i));
}

struct Attend {
  static constexpr char kName[] = "Reformer";

  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q,
                        const Tensor& v, const Tensor& buckets,
                        std::vector<int64_t> sizes) {
    const Sizes s = unpack(sizes);
    const Tensor y = at::empty_like(v),
                 shares = at::empty(buckets.sizes(), q.options());
    for_sequences(buckets.size(1), s, [&](int64_t first, int64_t n) {
      const auto part = [&](const Tensor& x) {
        return x.view({-1, s.d}).narrow(0, first, n);
      };
      attend_rows(part(q), part(v), buckets.narrow(1, first, n), s, part(y),
                  shares.narrow(1, first, n));
    });
    ctx->save_for_backward({q, v, buckets, y, shares});
    ctx->saved_data["sizes"] = std::move(sizes);
    return y;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &v = saved[1], &buckets = saved[2],
                 &y = saved[3], &shares = saved[4];
    const Sizes s = unpack(ctx->saved_data["sizes"].toIntVector());
    const Tensor dy = grads[0].contiguous(), dq = at::empty_like(q),
                 dv = at::empty_like(v);
    for_sequences(buckets.size(1), s, [&](int64_t first, int64_t n) {
      const auto part = [&](const Tensor& x) {
        return x.view({-1, s.d}).narrow(0, first, n);
      };
      attend_rows_backward(part(q), part(v), buckets.narrow(1, first, n),
                           part(y), shares.narrow(1, first, n), part(dy), s,
                           part(dq), part(dv));
    });
    return {dq, dv, Tensor(), Tensor()};
  }
};

}  // namespace

MixerKind reformer_kind() {
  MixerKind kind =
      mixer_kind<ReformerImpl>("reformer", [](const MixerOptions& o) {
        return ReformerOptions(o.dim, 8).causal(o.causal).chunk(32).max_len(
            o.max_len);
      });
  kind.grows = true;
  return kind;
}

void ReformerImpl::reset() {
  const int64_t dim = options.dim(), b = options.buckets();
  set_shape({"Reformer", dim, options.heads(), options.causal()});
  TORCH_CHECK(options.chunk() >= 1 && options.rounds() >= 1,
              "Reformer: chunk and rounds must be 1 or more, got ",
              options.chunk(), " and ", options.rounds());
  TORCH_CHECK(b == 1 || (b >= 0 && b % 2 == 0),
              "Reformer: buckets must be even, 1, or 0 to derive them from "
              "max_len, got ",
              b);
  qk = linear("qk", dim), value = linear("value", dim);
  out = linear("out", dim);
  if (buckets() > 1) {
    const Tensor drawn = at::randn(
        {options.rounds(), head_dim(), digits().count * digits().base / 2});
    if (named_buffers(false).contains("rotations"))
      rotations.set_data(drawn);
    else
      rotations = register_buffer("rotations", drawn);
  }
}

Digits ReformerImpl::digits() const {
  if (options.buckets() > 0) return digits_for(options.buckets());
  const int64_t two = 2 * options.chunk();
  return digits_for(std::max<int64_t>((options.max_len() + two - 1) / two, 1) *
                    2);
}

void ReformerImpl::redraw(uint64_t seed) {
  if (!rotations.defined()) return;
  at::NoGradGuard no_grad;
  // Drawn in float on the CPU, so that rotations do not depend on the device or
  // type of the module.
  rotations.copy_(at::randn(rotations.sizes(),
                            at::detail::createCPUGenerator(seed), at::kFloat));
}

void ReformerImpl::pack_for_inference() { qk.pack(), value.pack(), out.pack(); }

std::string ReformerImpl::details() const {
  return detail("chunk", options.chunk()) + detail("rounds", options.rounds()) +
         detail("buckets", buckets());
}

torch::Tensor ReformerImpl::forward(const torch::Tensor& x,
                                    const torch::Tensor& mask) {
  check_sequence(x);
  check_mask(mask, x);
  const int64_t B = x.size(0), T = x.size(1);
  Sizes s = sizes_of(*this, T);
  s.chunk = std::max<int64_t>(std::min(s.chunk, T), 1);  // avoids padding
  const Tensor q = ops::full_precision(qk(x)),
               v = ops::full_precision(value(x));
  const Tensor buckets = hash(q.detach().view({-1, s.d}), rotations, digits());
  if (mask.defined())
    buckets.view({s.rounds, B, T, s.heads})
        .masked_fill_(mask.cpu().view({1, B, T, 1}), -1);
  return out(ops::OnceDifferentiable<Attend>::apply(q, v, buckets, pack(s)));
}

ops::Stream ReformerImpl::start(int64_t B) const {
  // Each key is stored with its chunk indices, one per round. `sums` holds the
  // number of keys in each bucket.
  const Sizes s = sizes_of(*this, 1);
  const int64_t lists = s.heads * s.rounds, dim = options.dim();
  ops::Stream stream = start_cache(B, dim + lists, dim);
  stream.sums = at::zeros({B, lists, s.buckets}, at::kLong);
  return stream;
}

torch::Tensor ReformerImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position(x);
  const int64_t B = x.size(0), dim = options.dim();
  const Sizes s = sizes_of(*this, 1);
  const int64_t lists = s.heads * s.rounds;
  const Tensor q = ops::full_precision(qk(x)).view({B * s.heads, s.d}),
               v = ops::full_precision(value(x));
  check_fits(shape_.name, stream, v);
  const Tensor bucket =
      hash(q, rotations, digits()).t().reshape({B, lists, 1}).to(at::kLong);
  const Tensor rank = stream.sums.gather(2, bucket);
  stream.sums.scatter_add_(2, bucket, at::ones_like(bucket));
  // Chunk i of bucket b has index i buckets + b.
  const Tensor ours = rank.div(s.chunk, "floor")
                          .mul_(s.buckets)
                          .add_(bucket)
                          .view({B, lists})
                          .to(q.options());
  remember(stream, at::cat({(q * inverse_length(q)).view({B, dim}), ours}, 1),
           v);
  const int64_t seen = stream.position;
  const Tensor chunks = stream.ring_k.narrow(1, 0, seen).narrow(2, dim, lists),
               now = ours.unsqueeze(1);
  // [B, seen, heads]: the number of rounds that see each key. Computed as a
  // product, because sums over so few elements are slow.
  const Tensor count = at::mv(chunks.eq(now)
                                  .logical_or_(chunks.eq(now - s.buckets))
                                  .to(q.scalar_type())
                                  .reshape({-1, s.rounds}),
                              at::ones({s.rounds}, q.options()))
                           .view({B, seen, s.heads});
  const Tensor y = at::empty({B * s.heads, s.d}, q.options());
  for (int64_t row = 0; row < B * s.heads; ++row) {
    const int64_t b = row / s.heads, h = row % s.heads;
    const Tensor counts = count.select(0, b).select(1, h),
                 at = counts.nonzero().squeeze(1);
    const auto rows = [&](const Tensor& ring) {
      return ring.select(0, b).narrow(1, h * s.d, s.d).index_select(0, at);
    };
    const Tensor scores = counts.index_select(0, at).log_();
    scores.addmv_(rows(stream.ring_k), q[row], 1, s.scale());
    scores[-1].fill_(kSelf);
    y[row].copy_(at::mv(rows(stream.ring_v).t(), scores.softmax(0)));
  }
  return out(y.view({B, dim}));
}

}  // namespace aft::nn
