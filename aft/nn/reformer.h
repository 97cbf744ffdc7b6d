// Reformer attention: queries and keys share one projection, and a query sees
// only keys that locality-sensitive hashing puts in its bucket. Per head,
//   y_t = sum_{r, j in S_r(t)} e^{s_tj} v_j / sum_{r, j in S_r(t)} e^{s_tj},
//   s_tj = q_t . k_j / sqrt(d), k_j = q_j / sqrt(|q_j|^2 + 1e-6),
// d = dim / heads, over rounds r of hashing.
#pragma once

#include "aft/nn/heads.h"
#include "aft/nn/lsh.h"

namespace aft::nn {

struct ReformerOptions {
  ReformerOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads()), f("window", s.chunk()), f("rounds", s.rounds());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
  TORCH_ARG(int64_t, chunk) = 64;  ///< positions per chunk of a bucket
  TORCH_ARG(int64_t, rounds) = 4;  ///< rounds of hashing
  /// Even, or 1 for no hashing. 0: about max_len / chunk, at least 2. Above 64,
  /// the actual number may be slightly larger; see Digits.
  TORCH_ARG(int64_t, buckets) = 0;
  /// Used only to choose `buckets`; T may be larger.
  TORCH_ARG(int64_t, max_len) = 0;
};

/// Round r has a random rotation R_r [d, buckets / 2], shared by all heads.
/// Position t is in bucket argmax [q_t R_r; -q_t R_r] (for more than 64
/// buckets, in several such digits; see lsh.h). Its rank is the number of
/// earlier positions in that bucket, and its chunk is rank / chunk. S_r(t)
/// contains the keys of this chunk and the previous one of the same bucket:
/// those with j < t if causal, otherwise all of both chunks (and none after
/// them).
///
/// If no round finds another key, t sees itself and y_t = v_t: its own score is
/// a large negative number. If several rounds find the same j, it counts
/// several times. This equals the published code, which weights the results of
/// the rounds by the softmax of their logsumexp.
///
/// The published code sorts all positions by bucket and cuts the sorted list
/// into chunks. A later position can then push an earlier key out of a chunk,
/// which leaks the future. Here chunks are cut within each bucket, and ranks
/// depend only on the past, so outputs are bit-exactly causal. Also, t never
/// sees keys of other buckets, as it can at bucket boundaries in the published
/// code.
///
/// A padded position is in no bucket: no query sees it, and its own row is 0
/// before `out`.
///
/// Time O(rounds T d (chunk + log buckets)), memory linear in T: forward keeps
/// q, v and y, and backward recomputes the scores. A stream keeps all keys and
/// values, and a step reads those of its chunks. Because of rounding, step may
/// put a position near a bucket boundary into a different bucket than forward.
///
/// Parameters: Linear qk, value and out [dim, dim]. Buffer: rotations [rounds,
/// d, count base / 2] (see Digits; buckets / 2 columns for one digit),
/// undefined for one bucket.
class ReformerImpl : public torch::nn::Cloneable<ReformerImpl>,
                     public MixerBase {
 public:
  explicit ReformerImpl(const ReformerOptions& o) : options(o) { reset(); }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  void pack_for_inference() override;
  /// Draws new rotations, which depend only on the seed.
  void redraw(uint64_t seed) override;

  /// The number of buckets, and the digits of their indices.
  Digits digits() const;
  int64_t buckets() const { return digits().buckets(); }

  ReformerOptions options;
  PackedLinear qk{nullptr}, value{nullptr};
  torch::Tensor rotations;

 private:
  std::string details() const override;
};
TORCH_MODULE(Reformer);

MixerKind reformer_kind();

}  // namespace aft::nn
