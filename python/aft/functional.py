"""The five operators as functions, thin wrappers of torch.ops.aft.*.

    y_t = act(q_t) * num_t / den_t
    num_t = sum_j exp(k_j + w_tj) v_j,  den_t = sum_j exp(k_j + w_tj)

Arguments and properties of all of them:

q: [B, Tq, D], or None for y = num / den.
k, v: [B, Tk, D]; in conv and one_tap, k is [B, T, H] with H heads that divide D.
key_padding_mask: bool [B, Tk]; True: the key is masked, as in
    torch.nn.MultiheadAttention. The output of a query without any key is 0.
causal: query t uses only keys j <= t.
gate: act, one of "sigmoid", "relu", "tanh", "gelu", "silu", "softplus",
    "identity" (act(q) = q) and "none" (q is ignored).

Returns y [B, Tq, D]. q, k and v have one dtype, which is that of y; half and
bfloat16 are accumulated in float. Under autocast they may have different
floating dtypes, and are converted to the widest; autocast has no other effect.
Biases may have any floating dtype. Results are finite for every finite input,
including keys of 1e4. Memory is O(B T D).

Differentiable once, in q, k, v and all biases: create_graph=True works, but
differentiating the gradients again raises RuntimeError. Gradients of biases
that do not require them are not computed.

Raises RuntimeError, with the operator, the argument, what was expected and what
was found, if shapes, dtypes or devices do not match or the gate is unknown.
"""

from typing import Optional, Sequence

import torch
from torch import Tensor

__all__ = ["conv", "full", "local", "one_tap", "simple", "single"]


def simple(
    q: Optional[Tensor],
    k: Tensor,
    v: Tensor,
    *,
    key_padding_mask: Optional[Tensor] = None,
    causal: bool = False,
    gate: str = "sigmoid",
) -> Tensor:
    """AFT-simple: w = 0. Time O(B T D).

    >>> import aft, torch
    >>> q, k, v = torch.randn(3, 2, 10, 4)
    >>> aft.simple(q, k, v, causal=True).shape
    torch.Size([2, 10, 4])
    """
    return torch.ops.aft.simple(
        q, k, v, key_padding_mask=key_padding_mask, causal=causal, gate=gate
    )


def full(
    q: Optional[Tensor],
    k: Tensor,
    v: Tensor,
    *,
    u: Optional[Tensor] = None,
    v_pos: Optional[Tensor] = None,
    w: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    causal: bool = False,
    gate: str = "sigmoid",
) -> Tensor:
    """AFT-full: a bias for every pair of positions. Time O(B T^2 D).

    Give either w [Tq, Tk], or u [Tq, r] and v_pos [Tk, r] with w = u v_pos^T,
    which is never formed as a whole.

    >>> import aft, torch
    >>> q, k, v = torch.randn(3, 2, 10, 4)
    >>> u, v_pos = 0.01 * torch.randn(2, 10, 3)
    >>> y = aft.full(q, k, v, u=u, v_pos=v_pos)
    >>> torch.allclose(y, aft.full(q, k, v, w=u @ v_pos.T), atol=1e-5)
    True
    """
    return torch.ops.aft.full(
        q, k, v, u=u, v_pos=v_pos, w=w, key_padding_mask=key_padding_mask,
        causal=causal, gate=gate
    )


def local(
    q: Optional[Tensor],
    k: Tensor,
    v: Tensor,
    window: int,
    *,
    u: Optional[Tensor] = None,
    v_pos: Optional[Tensor] = None,
    w: Optional[Tensor] = None,
    window_only: bool = False,
    key_padding_mask: Optional[Tensor] = None,
    causal: bool = False,
    gate: str = "sigmoid",
) -> Tensor:
    """AFT-local: biases for pairs with |t - j| < window. Time O(B T window D).

    Biases as in full; of a dense w, only the band is read. Keys outside the
    window have w = 0, or are masked if window_only (the paper's ablation), which
    needs a window of at least 1. A window of 0 is simple.

    >>> import aft, torch
    >>> q, k, v = torch.randn(3, 2, 10, 4)
    >>> w = 0.01 * torch.randn(10, 10)
    >>> aft.local(q, k, v, 3, w=w, causal=True).shape
    torch.Size([2, 10, 4])
    """
    return torch.ops.aft.local(
        q, k, v, window, u=u, v_pos=v_pos, w=w, window_only=window_only,
        key_padding_mask=key_padding_mask, causal=causal, gate=gate
    )


def conv(
    q: Optional[Tensor],
    k: Tensor,
    v: Tensor,
    w: Tensor,
    grid: Sequence[int],
    *,
    window_only: bool = False,
    key_padding_mask: Optional[Tensor] = None,
    causal: bool = False,
    gate: str = "sigmoid",
) -> Tensor:
    """AFT-conv: biases by relative position on a grid, one kernel per head.
    Time O(B T taps D).

    grid: the 1, 2 or 3 sizes of the grid; T is their product, in row-major
    order. q [B, T, D] or None; v [B, T, D]; k [B, T, H], where head h has the
    channels [h D/H, (h + 1) D/H). w [H, *kernel], all sizes odd: tap a of an
    axis of size s is the bias of the key a - s // 2 steps ahead, as in
    torch.nn.functional.conv2d. Causal: 1d grids only; the kernel may have any
    size, and its last tap is the current position. Keys outside the window have
    w = 0, or are masked if window_only.

    >>> import aft, torch
    >>> q, v = torch.randn(2, 2, 5 * 6, 8)      # a grid of 5 x 6, 8 channels
    >>> k = torch.randn(2, 5 * 6, 4)            # 4 heads
    >>> w = 0.01 * torch.randn(4, 3, 3)
    >>> aft.conv(q, k, v, w, (5, 6)).shape
    torch.Size([2, 30, 8])
    """
    return torch.ops.aft.conv(
        q, k, v, w, grid, window_only=window_only,
        key_padding_mask=key_padding_mask, causal=causal, gate=gate
    )


def one_tap(
    q: Optional[Tensor],
    k: Tensor,
    v: Tensor,
    w: Tensor,
    offsets: Tensor,
    grid: Sequence[int],
    *,
    key_padding_mask: Optional[Tensor] = None,
    causal: bool = False,
    gate: str = "sigmoid",
) -> Tensor:
    """AFT-conv with kernels of one tap each. Time O(B T D).

    Shapes and grid as in conv. w [H] is the bias of head h for the key at
    position t + offsets[h] of the grid, offsets int64 [H, dimensions of grid].
    Every other pair has w = 0. If that position is outside of the grid, no key
    of t is biased. Causal: 1d grids only, with offsets <= 0.

    This time applies on the CPU, if no gradients are recorded, not causal, with
    |w| up to 20 (double: 200) and at most 2^25 positions. Otherwise, runs conv
    with the one-hot kernel.

    >>> import aft, torch
    >>> q, v = torch.randn(2, 2, 5 * 6, 8)      # a grid of 5 x 6, 8 channels
    >>> k = torch.randn(2, 5 * 6, 2)            # 2 heads
    >>> w, offsets = torch.randn(2), torch.tensor([[0, 1], [-1, 0]])
    >>> kernel = torch.zeros(2, 3, 3)
    >>> kernel[0, 1, 2], kernel[1, 0, 1] = w
    >>> y = aft.one_tap(q, k, v, w, offsets, (5, 6))
    >>> torch.allclose(y, aft.conv(q, k, v, kernel, (5, 6)), atol=1e-5)
    True
    """
    return torch.ops.aft.one_tap(
        q, k, v, w, offsets, grid, key_padding_mask=key_padding_mask,
        causal=causal, gate=gate
    )


#: The former name of one_tap.
single = one_tap
