// Reformer: attention with one projection for queries and keys that sees, of
// the past, the keys that locality-sensitive hashing puts in its own bucket:
//   y_t = sum_{r, j in S_r(t)} e^{s_tj} v_j / sum_{r, j in S_r(t)} e^{s_tj},
//   s_tj = q_t . k_j / sqrt(d), k_j = q_j / sqrt(|q_j|^2 + 1e-6),
// head by head, d = dim / heads, over rounds r of hashing.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "aft/nn/folded.h"
#include "aft/nn/lsh.h"
#include "aft/nn/mixer.h"

namespace aft::nn {

struct ReformerOptions {
  ReformerOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
  TORCH_ARG(int64_t, chunk) = 64;  ///< keys of a bucket that go together
  TORCH_ARG(int64_t, rounds) = 4;  ///< of hashing
  /// Even, or 1: no hashing. 0: about max_len / chunk, 2 or more. Over 64 it
  /// may become some more, see Digits.
  TORCH_ARG(int64_t, buckets) = 0;
  /// Only for that choice; T may be greater.
  TORCH_ARG(int64_t, max_len) = 0;
};

/// Round r has a random rotation R_r [d, buckets / 2], the same for all heads;
/// position t is in the bucket argmax [q_t R_r; -q_t R_r] (over 64 buckets: in
/// several such digits, lsh.h). Its rank is the number of earlier positions in
/// that bucket, its chunk is rank / chunk, and S_r(t) are the keys of its own
/// and of the previous chunk of the same bucket: j < t where causal, both
/// chunks whole (and none after them) where not. Where no round finds another
/// key, t sees itself, y_t = v_t: its own score is a great negative number.
/// Where several rounds find the same j it counts as often, as in the published
/// code, which weights the results of the rounds by the softmax of their
/// logsumexp: the same number.
///
/// The published code sorts all positions by bucket and cuts the sorted list
/// into chunks, so that a later position can push an earlier key out of sight:
/// the future leaks. Here chunks are cut inside each bucket, and a rank depends
/// on the past alone: outputs are causal to the last bit. Nor does t see keys
/// of other buckets, which the published code lets through at their borders.
///
/// A padded position is in no bucket: it is not seen, and sees nothing (0
/// before `out`).
///
/// Time rounds T d (chunk + log buckets), memory linear in T: forward keeps q,
/// v and y, and backward computes the scores again. Streaming keeps all keys
/// and values, and looks at those of its chunks. step may put a position that
/// is within rounding of the border of a bucket on the other side.
///
/// Parameters: Linear qk, value and out [dim, dim]; buffer rotations [rounds,
/// d, buckets / 2] (count base / 2 of Digits), none for one bucket.
class ReformerImpl : public torch::nn::Cloneable<ReformerImpl>, public Mixer {
 public:
  explicit ReformerImpl(const ReformerOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  torch::Tensor last_weight() const override { return out->weight; }
  void fold() override;
  /// New rotations, which depend on the seed alone.
  void redraw(uint64_t seed) override;

  /// How buckets are numbered, and how many there are.
  Digits digits() const;
  int64_t buckets() const { return digits().buckets(); }

  ReformerOptions options;
  torch::nn::Linear qk{nullptr}, value{nullptr}, out{nullptr};
  torch::Tensor rotations;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  Folded qk_, value_, out_;
};
TORCH_MODULE(Reformer);

}  // namespace aft::nn
