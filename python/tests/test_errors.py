"""Invalid arguments: each error names the operator or the layer, the argument,
what was expected and what was found."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import aft
from aft.nn import AFTConv, AFTFull, AFTLocal, AFTSimple


class TestOperators(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = torch.randn(3, 2, 6, 4)
        self.u, self.w = torch.randn(6, 3), torch.randn(6, 6)
        self.heads, self.taps = torch.randn(2, 6, 2), torch.randn(2, 3, 3)

    def check(self, op, words, *args, **options):
        with self.assertRaises(RuntimeError) as caught:
            getattr(aft, op)(*args, **options)
        for word in [f"aft::{op}", *words]:
            self.assertIn(word, str(caught.exception))

    def test_shapes(self):
        q, k, v = self.q, self.k, self.v
        bad = torch.randn(2, 5, 4)
        self.check("simple", ["v", "[2, 6, 4]", "[2, 5, 4]"], q, k, bad)
        self.check("simple", ["k", "[6, 4]"], q, k[0], v)
        self.check("simple", ["q", "[1, 6, 4]"], q[:1], k, v)
        self.check("simple", ["q", "[2, 6, 3]"], q[:, :, :3], k, v)

    def test_masks(self):
        for op, biases in [("simple", {}), ("full", {"w": self.w})]:
            mask = torch.zeros(2, 5, dtype=torch.bool)
            words = ["key_padding_mask", "[2, 6]", "[2, 5]"]
            args = [self.q, self.k, self.v]
            self.check(op, words, *args, key_padding_mask=mask, **biases)
            mask = torch.zeros(2, 6)
            words = ["key_padding_mask", "bool", "Float"]
            self.check(op, words, *args, key_padding_mask=mask, **biases)

    def test_dtypes(self):
        q, k, v = self.q, self.k, self.v
        self.check("simple", ["v", "Float", "Double"], q, k, v.double())
        self.check("simple", ["Long"], q.long(), k.long(), v.long())
        self.check("full", ["w", "floating", "Long"], q, k, v, w=self.w.long())

    def test_gates(self):
        words = ["gate", "sigmoid", "swish"]
        self.check("simple", words, self.q, self.k, self.v, gate="swish")

    def test_biases(self):
        q, k, v, u, w = self.q, self.k, self.v, self.u, self.w
        for op, args in [("full", (q, k, v)), ("local", (q, k, v, 2))]:
            self.check(op, ["w", "u", "v_pos"], *args)
            self.check(op, ["w", "u", "v_pos"], *args, u=u, v_pos=u, w=w)
            self.check(op, ["u", "v_pos"], *args, u=u)
            self.check(op, ["u", "[6, r]", "[5, 3]"], *args, u=u[:5], v_pos=u)
            self.check(op, ["v_pos", "[6, 2]"], *args, u=u, v_pos=u[:, :2])
            self.check(op, ["w", "[6, 6]", "[6, 5]"], *args, w=w[:, :5])

    def test_windows(self):
        q, k, v, w = self.q, self.k, self.v, self.w
        self.check("local", ["window", "-1"], q, k, v, -1, w=w)
        self.check("local", ["window", "0"], q, k, v, 0, w=w, window_only=True)

    def test_conv(self):
        q, v, heads, taps = self.q, self.v, self.heads, self.taps
        self.check("conv", ["grid", "6", "[2, 2]"], q, heads, v, taps, [2, 2])
        self.check("conv", ["w", "[2, 3, 3]"], q, heads, v, taps, [6])
        three, row = torch.randn(2, 6, 3), torch.randn(3, 3)
        self.check("conv", ["divide", "4", "3"], q, three, v, row, [6])
        self.check("conv", ["w", "[3, 3]"], q, heads, v, row, [6])
        even = taps[:, :2]
        self.check("conv", ["w", "odd", "[2, 2, 3]"], q, heads, v, even, [2, 3])
        args = [q, heads, v, taps, [2, 3]]
        self.check("conv", ["causal", "1", "2"], *args, causal=True)

    def test_second_derivatives(self):
        x = self.q.requires_grad_()
        y = aft.simple(x, x, x)
        first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
        again = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        self.assertTrue(torch.equal(first, again))
        with self.assertRaisesRegex(RuntimeError, "aft::simple: second deriv"):
            torch.autograd.grad(again.sum(), x, retain_graph=True)
        with self.assertRaisesRegex(RuntimeError, "aft::simple: second deriv"):
            (again.square().sum() + y.sum()).backward()


class TestLayers(unittest.TestCase):
    def check(self, words, function, *args, **options):
        with self.assertRaises(ValueError) as caught:
            function(*args, **options)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_constructors(self):
        check = self.check
        check(["AFTSimple", "dim", "at least 1", "0"], AFTSimple, 0)
        check(["AFTSimple", "gate", "sigmoid", "'no'"], AFTSimple, 4, gate="no")
        check(["AFTFull", "max_len", "0"], AFTFull, 4, 0)
        check(["AFTFull", "rank", "0"], AFTFull, 4, 8, rank=0)
        check(["AFTLocal", "window", "-1"], AFTLocal, 4, 8, -1)
        words = ["AFTLocal", "window_only", "at least 1", "0"]
        check(words, AFTLocal, 4, 8, 0, window_only=True)
        check(["AFTConv", "heads", "dim = 6", "4"], AFTConv, 6, 4, 3)
        check(["AFTConv", "heads", "0"], AFTConv, 6, 0, 3)
        check(["AFTConv", "dims", "4"], AFTConv, 6, 2, 3, dims=4)
        check(["AFTConv", "odd", "4"], AFTConv, 6, 2, 4)
        check(["AFTConv", "odd", "(3, 2)"], AFTConv, 6, 2, (3, 2))
        check(["AFTConv", "2", "(3, 3, 3)"], AFTConv, 6, 2, (3, 3, 3))
        check(["AFTConv", "positive", "0"], AFTConv, 6, 2, 0, dims=1)
        check(["AFTConv", "causal", "dims = 1"], AFTConv, 6, 2, 3, causal=True)

    def test_sequences(self):
        for layer in (AFTFull(4, 8, rank=2), AFTLocal(4, 8, 2, dense=True)):
            name = type(layer).__name__
            self.check([name, "9", "max_len = 8"], layer, torch.randn(1, 9, 4))
            x = torch.randn(1, 8, 3)
            self.check([name, "[B, T, 4]", "[1, 8, 3]"], layer, x)
        x = torch.randn(8, 4)
        self.check(["AFTSimple", "[B, T, 4]", "[8, 4]"], AFTSimple(4), x)

    def test_grids(self):
        layer = AFTConv(4, 2, 3)
        x = torch.randn(1, 4, 5, 6)
        self.check(["[B, dim, H, W]", "4", "[4, 5, 6]"], layer, x[0])
        self.check(["dim = 4", "[1, 5, 4, 6]"], layer, x.transpose(1, 2))
        rows = torch.randn(1, 30, 4)
        self.check(["grid", "[1, 30, 4]"], layer, rows)
        self.check(["grid", "T = 30", "(5, 5)"], layer, rows, grid=(5, 5))
        self.check(["grid", "2", "(30,)"], layer, rows, grid=(30,))
        mask = torch.zeros(1, 6, 5, dtype=torch.bool)
        words = ["key_padding_mask", "[1, 5, 6]", "[1, 6, 5]"]
        self.check(words, layer, x, mask)


if __name__ == "__main__":
    unittest.main()
