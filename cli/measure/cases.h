// Benchmark cases: shapes, seeded data, the implementations (ours and the
// rivals), and the minimum work of each case.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace aft::cli {

enum class Pass { kForward, kForwardBackward };

/// "forward" or "forward+backward".
const char* pass_name(Pass pass);

/// One operator on one shape.
struct Case {
  std::string variant;  ///< simple, local, full, conv or one_tap
  int64_t B = 1, T = 1, D = 1;
  int64_t H = 1;  ///< conv and one_tap: heads; else D
  bool causal = false;
  int64_t window = 0;         ///< local: |t - j| < window; conv: kernel size;
                              ///< one_tap: of the kernel that holds the offsets
  int64_t rank = 0;           ///< full and local: columns of u and v_pos
  std::vector<int64_t> grid;  ///< conv and one_tap

  /// For example local32-causal-B8-T1024-D512.
  std::string name() const;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Case, variant, B, T, D, H, causal, window,
                                   rank, grid)

// simple_case and local_case are causal.
Case simple_case(int64_t B, int64_t T, int64_t D);
Case local_case(int64_t B, int64_t T, int64_t D, int64_t window, int64_t rank);
Case full_case(int64_t B, int64_t T, int64_t D, int64_t rank, bool causal);
Case conv1d_case(int64_t B, int64_t T, int64_t D, int64_t heads,
                 int64_t kernel);  // causal
Case conv2d_case(int64_t B, int64_t side, int64_t D, int64_t heads,
                 int64_t kernel);
Case one_tap2d_case(int64_t B, int64_t side, int64_t D, int64_t heads,
                    int64_t kernel);

/// q, k, v and dy from N(0, 1); u and v_pos from N(0, 0.01^2), as the paper
/// initialises them; conv's w from N(0, 0.1^2), one_tap's from N(0, 1). Every
/// call gives the same data.
struct Data {
  at::Tensor q, k, v, dy;
  std::vector<at::Tensor> bias;  ///< [], [u, v_pos] or [w]
  at::Tensor offsets;            ///< one_tap: [H, sizes of grid]
};
Data make_data(const Case& c);

/// One implementation of a case.
struct Side {
  std::string name;  ///< aft, or as in make_rival
  /// Returns y and, with the backward pass, the gradients of q, k, v and the
  /// biases.
  std::function<std::vector<at::Tensor>(Pass)> run;
  /// Converts the result of `run` to the layout of `aft`. Empty: no conversion
  /// needed, or the results are not comparable.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> as_aft;
};

/// A side computed by a differentiable function of leaf tensors.
Side autograd_side(const std::string& name,
                   const std::vector<at::Tensor>& values, const at::Tensor& dy,
                   std::function<at::Tensor(const std::vector<at::Tensor>&)> f);

Side aft_side(const Case& c, const Data& data);

/// Runs both sides once and throws if their results differ by more than float
/// rounding explains. A speed ratio is only meaningful for equal results.
void check_same(const Side& aft, const Side& other, Pass pass);

/// The minimum work of a pass, for any implementation:
///   bytes  forward reads q, k, v and writes y; backward reads q, k, v, dy and
///          writes dq, dk, dv
///   flops  2 for each visible pair (t, j) of the window (of all T for full,
///          one per key for simple) and each column of [exp(k) v | exp(k)];
///          backward twice that, for the keys and for the biases
///   exps   one per element of k and q; backward the same again
/// The products u v_pos^T and their gradients, 1 / B of the rest, are not
/// counted.
struct Work {
  double bytes, flops, exps;
};
Work work(const Case& c, Pass pass);

}  // namespace aft::cli
