"""The five operators as functions: thin over torch.ops.aft.*.

    y_t = act(q_t) * num_t / den_t
    num_t = sum_j exp(k_j + w_tj) v_j,  den_t = sum_j exp(k_j + w_tj)

What all of them have in common:

q: [B, Tq, D], or None for y = num / den.
k, v: [B, Tk, D]; in conv and one_tap, k is [B, T, H] with H heads that divide D.
key_padding_mask: bool [B, Tk]; where True, a key takes no part, as in
    torch.nn.MultiheadAttention. A query that sees no key at all gives 0.
causal: key j counts for query t only where j <= t.
gate: act, one of "sigmoid", "relu", "tanh", "gelu", "silu", "softplus",
    "identity" (act(q) = q) and "none" (q is ignored).

Returns y [B, Tq, D]. q, k and v have one dtype, which is that of y: float and
double are computed as they are, half and bfloat16 are summed in float. Biases
may be of any floating dtype. Every finite input is safe, a key of 1e4 too.
Gradients flow to q, k, v and all biases; there are no second derivatives.
Memory is O(B T D).

A wrong argument raises a RuntimeError that names the operator, the argument,
what was expected and what came.
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

    q [B, Tq, D] or None; k, v [B, Tk, D]; the rest as in aft.functional.

    Raises RuntimeError when shapes, dtypes or devices do not fit together, or
    the gate is unknown.

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

    q [B, Tq, D] or None; k, v [B, Tk, D]; the rest as in aft.functional. The
    bias is either w [Tq, Tk], or u [Tq, r] and v_pos [Tk, r] with
    w = u v_pos^T, which is never formed as a whole.

    Raises RuntimeError when shapes, dtypes or devices do not fit together, and
    when not exactly one of w and the pair u, v_pos is given.

    >>> import aft, torch
    >>> q, k, v = torch.randn(3, 2, 10, 4)
    >>> u, v_pos = 0.01 * torch.randn(2, 10, 3)
    >>> y = aft.full(q, k, v, u=u, v_pos=v_pos)
    >>> torch.allclose(y, aft.full(q, k, v, w=u @ v_pos.T), atol=1e-5)
    True
    """
    return torch.ops.aft.full(
        q,
        k,
        v,
        u=u,
        v_pos=v_pos,
        w=w,
        key_padding_mask=key_padding_mask,
        causal=causal,
        gate=gate,
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
    """AFT-local: w_tj counts where |t - j| < window. Time O(B T window D).

    Shapes and biases as in full; only the band of a dense w is read. Keys
    outside the window still count, with w = 0, unless window_only leaves them
    out (the paper's ablation). A window of 0 is simple.

    Raises RuntimeError as full does, and for a negative window, or a window of
    0 together with window_only.

    >>> import aft, torch
    >>> q, k, v = torch.randn(3, 2, 10, 4)
    >>> w = 0.01 * torch.randn(10, 10)
    >>> aft.local(q, k, v, 3, w=w, causal=True).shape
    torch.Size([2, 10, 4])
    """
    return torch.ops.aft.local(
        q,
        k,
        v,
        window,
        u=u,
        v_pos=v_pos,
        w=w,
        window_only=window_only,
        key_padding_mask=key_padding_mask,
        causal=causal,
        gate=gate,
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
    """AFT-conv: w by the distance of two places on a grid, one kernel a head.
    Time O(B T taps D).

    grid: the 1, 2 or 3 sizes of the grid; T is their product, in row-major
    order. q [B, T, D] or None; v [B, T, D]; k [B, T, H], where head h holds the
    channels [h D/H, (h + 1) D/H); w [H, *kernel], one size an axis, all odd:
    tap a of an axis of size s belongs to the place a - s // 2 steps ahead, as
    in torch.nn.functional.conv2d. Causal on 1d grids only, with a kernel of any
    size, whose last tap is the place itself. Keys outside the window count with
    w = 0, unless window_only leaves them out.

    Raises RuntimeError when shapes, dtypes or devices do not fit together, H
    does not divide D, T is not the product of grid, a kernel size is even
    (unless causal), or causal meets a grid of more than one axis.

    >>> import aft, torch
    >>> q, v = torch.randn(2, 2, 5 * 6, 8)      # a grid of 5 x 6, 8 channels
    >>> k = torch.randn(2, 5 * 6, 4)            # 4 heads
    >>> w = 0.01 * torch.randn(4, 3, 3)
    >>> aft.conv(q, k, v, w, (5, 6)).shape
    torch.Size([2, 30, 8])
    """
    return torch.ops.aft.conv(
        q,
        k,
        v,
        w,
        grid,
        window_only=window_only,
        key_padding_mask=key_padding_mask,
        causal=causal,
        gate=gate,
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
    """AFT-conv whose kernels have one tap each. Time O(B T D).

    Shapes and grid as in conv; w [H] is the bias of head h at the place
    t + offsets[h] of the grid, offsets int64 [H, sizes of grid]. Every other
    pair has w = 0, and where that place lies outside of the grid there is no
    biased key. Causal on 1d grids only, with offsets <= 0.

    The time holds without gradients, on the CPU, not causal and for |w| up to
    20 (double: 200); elsewhere this is conv with the one-hot kernel.

    Raises RuntimeError as conv does, and when offsets are of another shape or
    dtype.

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
        q,
        k,
        v,
        w,
        offsets,
        grid,
        key_padding_mask=key_padding_mask,
        causal=causal,
        gate=gate,
    )


#: The former name of one_tap.
single = one_tap
