"""AFT layers: torch.nn.Modules that replace multi-head self attention.

    q, k, v = query(x), key(x), value(x)
    y = out(act(q) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj))

x [B, T, dim] to y [B, T, dim]; AFTConv also takes grids [B, dim, H, W].
Arguments of all layers:

key_padding_mask (forward): bool [B, T]; True: the key is masked, as in
    torch.nn.MultiheadAttention. The output at that position is still computed.
causal: an output does not depend on later inputs.
out: whether to apply the projection `out`.
gate: act, one of GATES. With "none" there is no projection `query` (the paper's
    ablation).
device, dtype: of the parameters, as in torch.nn.

key.bias shifts all keys equally and cancels: its gradient is 0 up to rounding.
It exists because the paper's parameter counts include it.

Parameters have the names of the C++ modules (aft::nn): a state_dict fits both.
"""

import math
from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from . import functional as F

__all__ = ["AFTConv", "AFTFull", "AFTLocal", "AFTSimple", "GATES"]

GATES = tuple("sigmoid relu tanh gelu silu softplus identity none".split())
Mask = Optional[Tensor]

#: Initial standard deviation of position biases: factors u and v, dense w.
POSITION_STD = 0.01
#: The same for AFTConv's raw kernels. They must not be constant: with gamma
#: = 0, neither they nor gamma would ever have a gradient. Their scale cancels.
RAW_STD = 0.02
#: Added to the standard deviation by which raw kernels are divided.
RAW_EPS = 1e-5


def _common(causal, out, gate, device, dtype):
    """The common arguments of all layers, as keyword arguments of _Layer."""
    options = {"causal": causal, "out": out, "gate": gate}
    return dict(options, device=device, dtype=dtype)


class _Layer(nn.Module):
    """The projections around an operator."""

    def __init__(self, dim, key_dim, *, causal, out, gate, device, dtype):
        super().__init__()
        self._positive(dim=dim)
        known = f"one of {', '.join(GATES)}"
        self._require(gate in GATES, f"gate must be {known}, got {gate!r}")
        self.dim, self.causal, self.gate = dim, bool(causal), gate
        like = {"device": device, "dtype": dtype}
        self.query = None if gate == "none" else nn.Linear(dim, dim, **like)
        self.key = nn.Linear(dim, key_dim, **like)
        self.value = nn.Linear(dim, dim, **like)
        self.out = nn.Linear(dim, dim, **like) if out else None

    def _require(self, good, text):
        if not good:
            raise ValueError(f"{type(self).__name__}: {text}")

    def _positive(self, **sizes):
        for name, size in sizes.items():
            self._require(size >= 1, f"{name} must be at least 1, got {size}")

    def _mix(self, operator, x, *args, **options):
        """out(operator(query(x), key(x), value(x), ...))"""
        q = None if self.query is None else self.query(x)
        options.update(causal=self.causal, gate=self.gate)
        y = operator(q, self.key(x), self.value(x), *args, **options)
        return y if self.out is None else self.out(y)

    def _check_sequence(self, x):
        self._require(
            x.dim() == 3 and x.size(2) == self.dim,
            f"x must be [B, T, dim] = [B, T, {self.dim}], got {list(x.shape)}",
        )

    def _common_repr(self):
        return f", causal={self.causal}, gate={self.gate!r}"


class AFTSimple(_Layer):
    """AFT-simple: no position biases.

    >>> import aft, torch
    >>> layer = aft.nn.AFTSimple(8, causal=True)
    >>> layer(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(
        self,
        dim: int,
        causal: bool = False,
        out: bool = True,
        gate: str = "sigmoid",
        *,
        device=None,
        dtype=None,
    ):
        super().__init__(dim, dim, **_common(causal, out, gate, device, dtype))

    def forward(self, x: Tensor, key_padding_mask: Mask = None) -> Tensor:
        self._check_sequence(x)
        return self._mix(F.simple, x, key_padding_mask=key_padding_mask)

    def extra_repr(self) -> str:
        return f"dim={self.dim}" + self._common_repr()


class _Positional(_Layer):
    """Base of AFTFull and AFTLocal: a bias for each pair of positions, dense w
    [max_len, max_len] or w = u v^T with factors [max_len, rank]."""

    def __init__(self, dim, max_len, rank, dense, biased=True, **common):
        super().__init__(dim, dim, **common)
        self._positive(max_len=max_len)
        if not dense:
            self._positive(rank=rank)
        self.max_len, self.rank, self.dense = max_len, rank, bool(dense)
        like = {name: common[name] for name in ("device", "dtype")}
        columns = {"w": max_len} if dense else {"u": rank, "v": rank}
        self._positions = tuple(columns) if biased else ()
        for name in self._positions:
            bias = torch.empty(max_len, columns[name], **like)
            self.register_parameter(name, nn.Parameter(bias))
        self.reset_positions()

    def reset_positions(self) -> None:
        """Reinitialises the position biases from N(0, 0.01^2)."""
        for name in self._positions:
            nn.init.normal_(getattr(self, name), std=POSITION_STD)

    def _biases(self, x):
        """The biases of the first T positions, by their names in functional."""
        self._check_sequence(x)
        T = x.size(1)
        self._require(
            T <= self.max_len,
            f"a sequence of T = {T} positions is longer than max_len = "
            f"{self.max_len}",
        )
        if not self._positions:
            return {}
        if self.dense:
            return {"w": self.w[:T, :T]}
        return {"u": self.u[:T], "v_pos": self.v[:T]}

    def _positions_repr(self):
        kind = "dense=True" if self.dense else f"rank={self.rank}"
        return f"dim={self.dim}, max_len={self.max_len}, {kind}"


class AFTFull(_Positional):
    """AFT-full: a learned bias for every pair of positions.

    max_len: maximum sequence length; shorter ones use the first T positions.
    rank: of the factors u, v. dense: w [max_len, max_len] instead of factors.

    >>> import aft, torch
    >>> layer = aft.nn.AFTFull(8, max_len=16, rank=4)
    >>> layer(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(
        self,
        dim: int,
        max_len: int,
        rank: int = 128,
        dense: bool = False,
        causal: bool = False,
        out: bool = True,
        gate: str = "sigmoid",
        *,
        device=None,
        dtype=None,
    ):
        common = _common(causal, out, gate, device, dtype)
        super().__init__(dim, max_len, rank, dense, **common)

    def forward(self, x: Tensor, key_padding_mask: Mask = None) -> Tensor:
        biases = self._biases(x)
        return self._mix(F.full, x, key_padding_mask=key_padding_mask, **biases)

    def extra_repr(self) -> str:
        return self._positions_repr() + self._common_repr()


class AFTLocal(_Positional):
    """AFT-local: a learned bias for each pair of positions less than `window`
    apart. Other keys have a bias of 0, or are masked if window_only (the
    paper's ablation). A window of 0 is AFTSimple, without biases.

    max_len, rank, dense: as in AFTFull.

    >>> import aft, torch
    >>> layer = aft.nn.AFTLocal(8, max_len=16, window=3, rank=4, causal=True)
    >>> layer(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(
        self,
        dim: int,
        max_len: int,
        window: int,
        rank: int = 128,
        dense: bool = False,
        window_only: bool = False,
        causal: bool = False,
        out: bool = True,
        gate: str = "sigmoid",
        *,
        device=None,
        dtype=None,
    ):
        self._require(window >= 0, f"window must be at least 0, got {window}")
        self._require(
            window > 0 or not window_only,
            f"window_only needs a window of at least 1, got {window}",
        )
        common = _common(causal, out, gate, device, dtype)
        super().__init__(dim, max_len, rank, dense, window > 0, **common)
        self.window, self.window_only = window, bool(window_only)

    def forward(self, x: Tensor, key_padding_mask: Mask = None) -> Tensor:
        return self._mix(
            F.local,
            x,
            self.window,
            window_only=self.window_only,
            key_padding_mask=key_padding_mask,
            **self._biases(x),
        )

    def extra_repr(self) -> str:
        only = ", window_only=True" if self.window_only else ""
        return (
            f"{self._positions_repr()}, window={self.window}{only}"
            + self._common_repr()
        )


class AFTConv(_Layer):
    """AFT-conv: one learned kernel of biases per head, on grids of any size.

    dims: dimensions of the grid, 1, 2 or 3. kernel: one odd size for all
    dimensions, or one per dimension. heads: must divide dim; K has one channel
    per head. causal: in 1d only; the kernel may have any size, and its last tap
    is the current position. reparameterise: the kernel of a head is
    gamma (w - mean w) / (std w + 1e-5) + beta, with gamma and beta initialised
    to 0; otherwise it is w, initialised from N(0, 0.01^2). window_only: keys
    outside the kernel are masked (the paper's ablation); beta then cancels.
    gumbel: restricts each head to one position. In training the kernel is
    multiplied by a Gumbel-softmax sample with this temperature (0.5 in the
    paper), in evaluation by the one-hot vector of its largest tap. 0: off.

    forward takes x [B, dim, H, W] or [B, dim, D, H, W] (1d: [B, T, dim]), or,
    with grid=(H, W), x [B, H * W, dim], and returns the same shape.
    key_padding_mask is [B, T] or [B, *grid].

    >>> import aft, torch
    >>> layer = aft.nn.AFTConv(8, heads=4, kernel=3)
    >>> layer(torch.randn(2, 8, 5, 6)).shape
    torch.Size([2, 8, 5, 6])
    >>> layer(torch.randn(2, 30, 8), grid=(5, 6)).shape
    torch.Size([2, 30, 8])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kernel: Union[int, Sequence[int]],
        dims: int = 2,
        causal: bool = False,
        reparameterise: bool = True,
        window_only: bool = False,
        out: bool = True,
        gate: str = "sigmoid",
        gumbel: float = 0.0,
        *,
        device=None,
        dtype=None,
    ):
        self._positive(heads=heads)
        require = self._require
        require(dim % heads == 0, f"heads must divide dim = {dim}, got {heads}")
        require(dims in (1, 2, 3), f"dims must be 1, 2 or 3, got {dims}")
        require(dims == 1 or not causal, f"causal needs dims = 1, got {dims}")
        sizes = (kernel,) * dims if isinstance(kernel, int) else tuple(kernel)
        require(
            len(sizes) == dims and min(sizes) >= 1,
            f"kernel must be {dims} positive size(s), got {kernel}",
        )
        require(
            causal or all(size % 2 for size in sizes),
            f"kernel sizes must be odd unless causal, got {kernel}",
        )
        require(
            gumbel == 0 or 0.01 <= gumbel <= 100,
            "gumbel must be 0 (off) or a temperature in [0.01, 100], "
            f"got {gumbel}",
        )
        common = _common(causal, out, gate, device, dtype)
        super().__init__(dim, heads, **common)
        self.heads, self.kernel, self.dims = heads, sizes, dims
        self.reparameterise = bool(reparameterise)
        self.window_only = bool(window_only)
        self.gumbel = float(gumbel)

        def parameter(*shape):
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.w = parameter(heads, *sizes)
        if reparameterise:
            self.gamma, self.beta = parameter(heads), parameter(heads)
        self.reset_positions()

    def reset_positions(self) -> None:
        """Reinitialises w, and gamma and beta to 0."""
        std = RAW_STD if self.reparameterise else POSITION_STD
        nn.init.normal_(self.w, std=std)
        if self.reparameterise:
            nn.init.zeros_(self.gamma)
            nn.init.zeros_(self.beta)

    def kernels(self) -> Tensor:
        """w, reparameterised, [heads, *kernel]."""
        if not self.reparameterise:
            return self.w
        raw = self.w.flatten(1)
        centred = raw - raw.mean(1, keepdim=True)
        scale = raw.std(1, unbiased=False, keepdim=True) + RAW_EPS
        w = self.gamma[:, None] * (centred / scale) + self.beta[:, None]
        return w.view_as(self.w)

    def bias(self) -> Tensor:
        """The biases [heads, *kernel] passed to the operator."""
        w = self.kernels()
        if not self.gumbel:
            return w
        flat = w.flatten(1)
        if self.training:
            share = nn.functional.gumbel_softmax(flat, self.gumbel)
        else:
            share = nn.functional.one_hot(flat.argmax(1), flat.size(1))
        return (flat * share).view_as(w)

    def _one_tap(self):
        """The bias of the largest tap of each head, and its offset."""
        top, rest = self.kernels().flatten(1).max(1)
        places = []
        for size in reversed(self.kernel):
            centre = size - 1 if self.causal else size // 2
            places.insert(0, rest % size - centre)
            rest = torch.div(rest, size, rounding_mode="floor")
        return top, torch.stack(places, 1)

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Mask = None,
        grid: Optional[Tuple[int, ...]] = None,
    ) -> Tensor:
        if self.dims == 1 and grid is None:
            self._check_sequence(x)
            grid = (x.size(1),)
        sizes = self._grid(x, grid)
        rows = x.flatten(2).transpose(1, 2) if grid is None else x
        if key_padding_mask is not None and key_padding_mask.dim() > 2:
            shape = [x.size(0), *sizes]
            self._require(
                list(key_padding_mask.shape) == shape,
                f"key_padding_mask must be [B, T] or [B, *grid] = {shape}, "
                f"got {list(key_padding_mask.shape)}",
            )
            key_padding_mask = key_padding_mask.flatten(1)
        mask = {"key_padding_mask": key_padding_mask}
        # one_tap has no window_only: its other keys are never masked.
        if self.gumbel and not self.training and not self.window_only:
            y = self._mix(F.one_tap, rows, *self._one_tap(), sizes, **mask)
        else:
            mask["window_only"] = self.window_only
            y = self._mix(F.conv, rows, self.bias(), sizes, **mask)
        return y if grid is not None else y.transpose(1, 2).reshape_as(x)

    def _grid(self, x, grid):
        """Returns the sizes of the grid, after checking x."""
        if grid is None:
            axes = ("H, W", "D, H, W")[self.dims - 2]
            self._require(
                x.dim() == self.dims + 2 and x.size(1) == self.dim,
                f"x must be [B, dim, {axes}] with dim = {self.dim}, or "
                f"[B, T, dim] together with grid, got {list(x.shape)}",
            )
            return list(x.shape[2:])
        sizes = [int(size) for size in grid]
        self._check_sequence(x)
        self._require(
            len(sizes) == self.dims and math.prod(sizes) == x.size(1),
            f"grid must be {self.dims} size(s) with the product T = "
            f"{x.size(1)}, got {tuple(sizes)}",
        )
        return sizes

    def extra_repr(self) -> str:
        kernel = "x".join(str(size) for size in self.kernel)
        text = f"dim={self.dim}, heads={self.heads}, kernel={kernel}"
        if not self.reparameterise:
            text += ", reparameterise=False"
        if self.window_only:
            text += ", window_only=True"
        if self.gumbel:
            text += f", gumbel={self.gumbel:g}"
        return text + self._common_repr()
