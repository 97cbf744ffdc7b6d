// The baselines for the operators: ATen calls as a PyTorch user would write
// them, tuned as far as possible without changing the formula.
#pragma once

#include "cli/measure/cases.h"

namespace aft::cli {

/// The direct implementation: cumsum for simple, a dense masked exp(w) and
/// matrix products for full and local, Eq. 6 with grouped conv2d (or conv1d) in
/// [B, C, H, W] for conv. The maximum of the keys and of the biases is
/// subtracted first, as is customary. Masks are created once. channels_last:
/// conv in [B, H, W, C].
Side naive_side(const Case& c, const Data& data, bool channels_last = false);

/// Multi-head attention with 8 heads on the same q, k and v: nn::Attention
/// without its linear layers. 8 must divide D. Its k has D channels, for conv
/// too.
Side attention_side(const Case& c, const Data& data);

/// The same as matmul, mask, softmax, matmul.
Side naive_attention_side(const Case& c, const Data& data);

/// full: only the matrix products, of a precomputed exp(w) [T, T] and a
/// precomputed panel [T, B 2 D], in the fastest layout. Backward: the two
/// products for the keys and for the biases. Causal: in blocks of 128 rows,
/// skipping what lies entirely above the diagonal, so both sides do about half
/// of the work.
Side gemm_side(const Case& c, const Data& data);

/// one_tap: non-causal aft::simple on the same q and v, which gives the cost of
/// pooling alone. Its k has D channels; if H < D, the channels of a head share
/// one key.
Side simple_side(const Case& c, const Data& data);

/// Makes a rival by name. Throws if the name is unknown.
Side make_rival(const std::string& name, const Case& c, const Data& data);

}  // namespace aft::cli
