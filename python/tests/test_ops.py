"""The functions aft.simple, full, local, conv and one_tap against the paper's
equation in dense double tensors,

    y_t = act(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)

values, gradients and every option. Invalid arguments are in test_errors.py.
"""

import doctest
import inspect
import itertools
import math
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import aft

ACTIVATIONS = {
    "sigmoid": lambda q: 1 / (1 + torch.exp(-q)),
    "relu": lambda q: q * (q > 0),
    "tanh": torch.tanh,
    "gelu": lambda q: q * 0.5 * (1 + torch.erf(q / math.sqrt(2))),
    "silu": lambda q: q / (1 + torch.exp(-q)),
    "softplus": lambda q: torch.log(1 + torch.exp(q)),
    "identity": lambda q: q,
    "none": lambda q: torch.ones_like(q),
}

# ---- The equation ------------------------------------------------------------


def conv_bias(w, grid, causal):
    """Taps w [H, *kernel] as biases [H, T, T], and where they are [T, T]."""
    positions = list(itertools.product(*[range(n) for n in grid]))
    sizes = w.shape[1:]
    rows, inside = [], torch.zeros(len(positions), len(positions), dtype=torch.bool)
    for t, here in enumerate(positions):
        for j, there in enumerate(positions):
            tap = [
                b - a + (s - 1 if causal else s // 2)
                for a, b, s in zip(here, there, sizes)
            ]
            inside[t, j] = all(0 <= a < s for a, s in zip(tap, sizes))
            rows.append(w[(slice(None), *tap)] if inside[t, j] else 0 * w.sum())
    rows = [row.expand(w.size(0)) for row in rows]
    return torch.stack(rows, 1).view(-1, *inside.shape), inside


def one_tap_bias(w, offsets, grid):
    """Biases w [H] at the offsets [H, sizes of grid] as [H, T, T]."""
    positions = torch.cartesian_prod(*[torch.arange(n) for n in grid])
    positions = positions.view(-1, len(grid))
    apart = positions[None] - positions[:, None]  # [T, T, sizes of grid]
    hot = (apart == offsets[:, None, None]).all(-1)
    return hot * w[:, None, None]


def reference(x, s):
    """y for the tensors x (double) and the settings s of a case."""
    q, k, v = x.get("q"), x["k"], x["v"]
    B, Tk, H = k.shape
    Tq = Tk if q is None else q.size(1)
    heads = H if s["op"] in ("conv", "one_tap") else v.size(2)
    w = torch.zeros(1, Tq, Tk, dtype=k.dtype)
    if "u" in x:
        w = (x["u"] @ x["v_pos"].T)[None]
    elif "w" in x:
        w = x["w"][None]
    inside = torch.ones(Tq, Tk, dtype=torch.bool)
    if s["op"] == "local":
        t, j = torch.arange(Tq)[:, None], torch.arange(Tk)
        inside = (t - j).abs() < s["window"]
        w = torch.where(inside, w, torch.zeros_like(w))
    elif s["op"] == "conv":
        w, inside = conv_bias(x["w"], s["grid"], s.get("causal", False))
    elif s["op"] == "one_tap":
        w = one_tap_bias(x["w"], s["offsets"], s["grid"])
    seen = torch.ones(B, Tq, Tk, dtype=torch.bool)
    if s.get("window_only"):
        seen &= inside
    if s.get("causal"):
        seen &= torch.ones(Tq, Tk, dtype=torch.bool).tril()
    if "key_padding_mask" in s:
        seen &= s["key_padding_mask"][:, None] == 0
    seen = seen[:, None]  # [B, 1, Tq, Tk]
    e = k.transpose(1, 2)[:, :, None] + w  # [B, heads, Tq, Tk]
    top = e.detach().masked_fill(~seen, -math.inf).amax(-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0)
    e = torch.exp((e - top).masked_fill(~seen, -math.inf))
    den = e.sum(-1)[..., None]
    num = e @ v.view(B, Tk, heads, -1).transpose(1, 2)
    r = num / den.masked_fill(den == 0, 1)
    r = r.transpose(1, 2).reshape(B, Tq, -1)
    return r if q is None else r * ACTIVATIONS[s.get("gate", "sigmoid")](q)


# ---- Cases -------------------------------------------------------------------


def case(op, B=2, T=7, D=5, **s):
    """Random tensors and settings. Of the arguments, Tq, H, kernel, bias,
    query and scale shape the tensors; the rest are settings of the operator."""
    Tq, scale = s.pop("Tq", T), s.pop("scale", 1)
    bias, query = s.pop("bias", "factors"), s.pop("query", True)
    torch.manual_seed(B + 10 * T + 100 * D)
    H = s.pop("H", D)
    x = {"k": scale * torch.randn(B, T, H), "v": torch.randn(B, T, D)}
    if query:
        x["q"] = torch.randn(B, Tq, D)
    if op in ("full", "local") and bias == "factors":
        x["u"], x["v_pos"] = torch.randn(Tq, 3), torch.randn(T, 3)
    elif op in ("full", "local"):
        x["w"] = torch.randn(Tq, T)
    elif op == "conv":
        x["w"] = torch.randn(H, *s.pop("kernel"))
    elif op == "one_tap":
        x["w"], s["offsets"] = torch.randn(H), torch.tensor(s["offsets"])
    if s.pop("padded", False):
        s["key_padding_mask"] = torch.rand(B, T) < 0.4
    return {name: t.double() for name, t in x.items()}, {"op": op, **s}


SMALL = [
    dict(op="simple"),
    dict(op="simple", causal=True, padded=True),
    dict(op="simple", T=1, D=1, B=1),
    dict(op="simple", query=False),
    dict(op="simple", Tq=4),
    dict(op="full"),
    dict(op="full", causal=True, padded=True),
    dict(op="full", bias="dense", causal=True),
    dict(op="full", bias="dense", query=False, padded=True),
    dict(op="full", Tq=4, bias="dense"),
    dict(op="full", T=1, D=1),
    dict(op="local", window=3, causal=True),
    dict(op="local", window=2, bias="dense", padded=True),
    dict(op="local", window=1, query=False),
    dict(op="local", window=20, causal=True),
    dict(op="local", window=2, window_only=True),
    dict(op="local", window=2, window_only=True, causal=True, padded=True),
    dict(op="conv", grid=[7], kernel=[3]),
    dict(op="conv", grid=[7], kernel=[4], causal=True, D=6, H=3),
    dict(op="conv", grid=[2, 3], kernel=[3, 5], T=6, D=4, H=2),
    dict(op="conv", grid=[3, 2], kernel=[3, 3], T=6, window_only=True),
    dict(op="conv", grid=[3, 2], kernel=[1, 3], T=6, padded=True, query=False),
    dict(op="conv", grid=[2, 1, 3], kernel=[3, 3, 1], T=6, D=4, H=1),
    dict(op="one_tap", grid=[7], offsets=[[0], [1], [-6], [7], [2]]),
    dict(op="one_tap", grid=[7], offsets=[[0], [-2]], causal=True, D=6, H=2),
    dict(op="one_tap", grid=[2, 3], offsets=[[1, -2], [0, 5]], T=6, D=4, H=2),
    dict(op="one_tap", grid=[3, 2], offsets=[[1, 1]], T=6, H=1, padded=True),
    dict(op="one_tap", grid=[2, 1, 3], offsets=[[1, 0, -1]], T=6, D=4, H=1,
         query=False),
] + [dict(op="local", window=2, causal=True, gate=gate) for gate in ACTIVATIONS]

LARGE = [
    dict(op="simple", T=200, D=33, causal=True, padded=True),
    dict(op="full", T=150, D=33, causal=True),
    dict(op="full", T=150, D=20, padded=True),
    dict(op="local", T=150, D=33, window=40, causal=True, padded=True),
    dict(op="local", T=150, D=20, window=9, bias="dense"),
    dict(op="conv", T=48, D=36, H=4, grid=[6, 8], kernel=[3, 5]),
    dict(op="conv", T=60, D=20, H=20, grid=[60], kernel=[8], causal=True),
    dict(op="one_tap", T=48, D=36, H=2, grid=[6, 8], offsets=[[2, -7], [-5, 1]]),
]

# Keys of 1e4: exp alone overflows at 89 in float and 710 in double.
HUGE = [
    dict(op="simple", T=40, scale=1e4, causal=True),
    dict(op="full", T=40, scale=1e4, causal=True),
    dict(op="full", T=40, scale=1e4, padded=True),
    dict(op="local", T=40, scale=1e4, window=5, causal=True),
    dict(op="local", T=40, scale=1e4, window=5, bias="dense"),
    dict(op="conv", T=40, D=8, H=4, scale=1e4, grid=[5, 8], kernel=[3, 3]),
    dict(op="one_tap", T=40, D=8, H=1, scale=1e4, grid=[5, 8], offsets=[[1, 2]]),
]


def run(x, s):
    positions = ("op", "grid", "offsets")
    options = {n: value for n, value in s.items() if n not in positions}
    operator, args = getattr(aft, s["op"]), [x.get("q"), x["k"], x["v"]]
    if s["op"] == "conv":
        return operator(*args, x["w"], s["grid"], **options)
    if s["op"] == "one_tap":
        return operator(*args, x["w"], s["offsets"], s["grid"], **options)
    biases = {n: x[n] for n in ("u", "v_pos", "w") if n in x}
    return operator(*args, **biases, **options)


def with_gradients(function, x, s):
    """y and the gradients of sum(y * dy) for a fixed random dy."""
    x = {name: t.detach().clone().requires_grad_() for name, t in x.items()}
    y = function(x, s)
    torch.manual_seed(0)
    y.backward(torch.randn(y.shape).to(y.dtype))
    return y.detach(), {name: t.grad for name, t in x.items()}


class TestAgainstEquation(unittest.TestCase):
    def check(self, table, dtype, rtol, atol):
        for arguments in table:
            with self.subTest(dtype=dtype, **arguments):
                x, s = case(**arguments)
                x = {name: t.to(dtype) for name, t in x.items()}
                y, gradients = with_gradients(run, x, s)
                self.assertEqual(y.dtype, dtype)
                exact = {name: t.double() for name, t in x.items()}
                expected, expected_grad = with_gradients(reference, exact, s)
                close = dict(rtol=rtol, atol=atol, check_dtype=False)
                torch.testing.assert_close(y, expected, **close)
                for name, gradient in gradients.items():
                    expect = expected_grad[name]
                    if expect is None:  # the gate "none" ignores q
                        expect = torch.zeros_like(x[name])
                    if gradient is None:
                        gradient = torch.zeros_like(x[name])
                    self.assertTrue(gradient.isfinite().all(), name)
                    # a gradient is a sum: its error scales with the largest
                    close["atol"] = atol * max(1, expect.abs().max().item())
                    torch.testing.assert_close(
                        gradient,
                        expect,
                        **close,
                        msg=lambda text: f"d{name}: {text}",
                    )

    def test_double(self):
        self.check(SMALL + LARGE, torch.float64, 1e-10, 1e-11)

    def test_float(self):
        self.check(SMALL + LARGE, torch.float32, 1e-5, 5e-6)

    def test_huge_keys(self):
        self.check(HUGE, torch.float64, 1e-9, 1e-9)
        self.check(HUGE, torch.float32, 1e-5, 1e-5)

    def test_half_types(self):
        # One rounding of the result, and of the gradients.
        self.check(SMALL + LARGE, torch.float16, 2e-3, 2e-3)
        self.check(SMALL + LARGE, torch.bfloat16, 1.6e-2, 1.6e-2)

    def test_gradcheck(self):
        for arguments in SMALL:
            with self.subTest(**arguments):
                x, s = case(**arguments)
                if s.get("gate") == "relu":  # keep away from its corner
                    x["q"] = x["q"] + 0.1 * x["q"].sign()
                names = list(x)
                leaves = [x[name].requires_grad_() for name in names]
                torch.autograd.gradcheck(
                    lambda *ts: run(dict(zip(names, ts)), s), leaves
                )


class TestContract(unittest.TestCase):
    def test_functions_have_the_schema_of_the_operators(self):
        for name in ("simple", "full", "local", "conv", "one_tap"):
            schema = getattr(torch.ops.aft, name).default._schema
            ours = inspect.signature(getattr(aft, name)).parameters.values()
            self.assertEqual(
                [a.name for a in schema.arguments], [p.name for p in ours]
            )
            for a, p in zip(schema.arguments, ours):
                self.assertEqual(a.kwarg_only, p.kind is p.KEYWORD_ONLY, p)
                if a.has_default_value():
                    self.assertEqual(a.default_value, p.default, p)

    def test_half_is_summed_in_float(self):
        # 4096 ones: sums in half stop at 2048, in bfloat16 at 256.
        T = 4096
        v = (torch.arange(T) >= T // 2).view(1, T, 1)
        k = torch.zeros(1, T, 1)
        for dtype in (torch.float16, torch.bfloat16):
            y = aft.simple(None, k.to(dtype), v.to(dtype), causal=True)
            self.assertEqual(y[0, -1, 0].item(), 0.5)

    def test_a_row_without_keys_is_zero(self):
        mask = torch.tensor([[False] * 5, [True] * 5])
        q, k, v = torch.randn(3, 2, 5, 4).requires_grad_().unbind()
        for leaf in (q, k, v):
            leaf.retain_grad()
        w = torch.randn(5, 5, requires_grad=True)
        y = aft.full(q, k, v, w=w, key_padding_mask=mask)
        y.sum().backward()
        self.assertGreater(y[0].abs().min().item(), 0)
        self.assertEqual(y[1].abs().max().item(), 0)
        self.assertTrue(w.grad.isfinite().all())
        for leaf in (q, k, v):
            self.assertEqual(leaf.grad[1].abs().max().item(), 0)
            self.assertGreater(leaf.grad[0].abs().max().item(), 0)

    def test_biases_keep_their_precision_with_half_inputs(self):
        # as under autocast: q, k, v are narrow, parameters are not
        x, s = case(op="full", bias="dense", scale=0.1)
        for dtype in (torch.float16, torch.bfloat16):
            narrow = {name: x[name].to(dtype) for name in ("q", "k", "v")}
            w = (256 + x["w"]).float()  # rounds to 256 and 258 in bfloat16
            y, gradient = with_gradients(run, dict(narrow, w=w), s)
            self.assertEqual(y.dtype, dtype)
            self.assertEqual(gradient["w"].dtype, torch.float32)
            exact = {name: t.double() for name, t in narrow.items()}
            expected = reference(dict(exact, w=w.double()), s)
            torch.testing.assert_close(
                y, expected, rtol=8e-3, atol=8e-3, check_dtype=False
            )

    def test_causality_is_bit_exact(self):
        t = 20
        for arguments in LARGE + HUGE:
            if not arguments.get("causal"):
                continue
            with self.subTest(**arguments):
                x, s = case(**arguments)
                x = {name: a.float() for name, a in x.items()}
                before = run(x, s)
                for name in ("q", "k", "v"):
                    x[name][:, t:] = 50 * torch.randn_like(x[name][:, t:])
                after = run(x, s)
                self.assertTrue(torch.equal(before[:, :t], after[:, :t]))
                self.assertFalse(torch.equal(before[:, t:], after[:, t:]))

    def test_inputs_need_not_be_contiguous(self):
        for arguments in SMALL:
            with self.subTest(**arguments):
                x, s = case(**arguments)
                bent = {
                    name: a.transpose(0, -1).contiguous().transpose(0, -1)
                    for name, a in x.items()
                }
                expected, expected_grad = with_gradients(run, x, s)
                bent = {name: a.requires_grad_() for name, a in bent.items()}
                y = run(bent, s)
                torch.manual_seed(0)
                dy = torch.randn(y.shape).to(y.dtype)
                y.backward(dy.transpose(0, -1).contiguous().transpose(0, -1))
                torch.testing.assert_close(y, expected)
                for name, leaf in bent.items():
                    if leaf.grad is not None:
                        torch.testing.assert_close(
                            leaf.grad, expected_grad[name]
                        )

    def test_without_autograd(self):
        x, s = case(op="local", window=3, causal=True)
        expected = run(x, s)
        leaf = {name: a.clone().requires_grad_() for name, a in x.items()}
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                y = run(leaf, s)
            self.assertFalse(y.requires_grad)
            self.assertTrue(torch.equal(y, expected))

    def test_one_tap_without_gradients(self):
        # Without gradients it has separate kernels.
        for arguments in SMALL + LARGE + HUGE:
            if arguments["op"] != "one_tap":
                continue
            for dtype, close in (torch.float64, 1e-9), (torch.float32, 1e-5):
                with self.subTest(dtype=dtype, **arguments):
                    x, s = case(**arguments)
                    x = {name: t.to(dtype) for name, t in x.items()}
                    exact = {name: t.double() for name, t in x.items()}
                    torch.testing.assert_close(
                        run(x, s),
                        reference(exact, s),
                        rtol=close,
                        atol=close,
                        check_dtype=False,
                    )

    def test_gradients_only_where_required(self):
        x, s = case(op="full", bias="dense")
        _, expected = with_gradients(run, x, s)
        for name in x:
            leaf = dict(x, **{name: x[name].clone().requires_grad_()})
            y = run(leaf, s)
            torch.manual_seed(0)
            y.backward(torch.randn(y.shape).to(y.dtype))
            torch.testing.assert_close(leaf[name].grad, expected[name])


def load_tests(loader, tests, pattern):
    tests.addTests(doctest.DocTestSuite(aft.functional))
    return tests


if __name__ == "__main__":
    unittest.main()
