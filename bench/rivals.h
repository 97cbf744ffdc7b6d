// What the operators are measured against, in ATen calls as a PyTorch user
// writes them, tuned as far as that goes without leaving the formula.
#pragma once

#include "cli/bench_cases.h"

namespace aft::cli {

/// The same maths with the obvious tensors: cumsum for simple, a dense masked
/// exp(w) and matrix products for full and local, Eq. 6 with grouped conv2d (or
/// conv1d) in [B, C, H, W] for conv. Largest keys and biases are subtracted
/// first, as people do. Masks are made once.
Side naive_side(const Case& c, const Data& data);

/// Multi-head attention with 8 heads on the same q, k and v: matmul, mask,
/// softmax, matmul. 8 must divide D. Its k has D channels, for conv too.
Side attention_side(const Case& c, const Data& data);

/// full: nothing but the matrix products, of a ready exp(w) [T, T] with a ready
/// panel [T, B 2 D], in the best layout for them. Backward: the two products
/// for the keys and for the biases. Causal: by blocks of 128 rows, what lies
/// wholly above the diagonal is left out, so both sides do about half.
Side gemm_side(const Case& c, const Data& data);

/// single: aft::simple on the same q and v, not causal: what pooling alone
/// takes. Its k has D channels: where H < D, those of a head have the same
/// keys.
Side simple_side(const Case& c, const Data& data);

/// By name. Throws where there is none.
Side make_rival(const std::string& name, const Case& c, const Data& data);

}  // namespace aft::cli
