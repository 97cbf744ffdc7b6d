"""The layers of aft.nn: against the functions, in training, on disk, and in place
of multi-head attention. Invalid arguments are in test_errors.py."""

import copy
import doctest
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn.functional import linear

import aft
from aft.nn import AFTConv, AFTFull, AFTLocal, AFTSimple

B, T, D = 2, 12, 8


def layers(**options):
    """One of each kind that takes [B, T, D]; conv in 1d."""
    return {
        "simple": AFTSimple(D, **options),
        "full": AFTFull(D, 16, rank=3, **options),
        "full dense": AFTFull(D, 16, dense=True, **options),
        "local": AFTLocal(D, 16, 4, rank=3, **options),
        "local dense": AFTLocal(D, 16, 4, dense=True, **options),
        "local only": AFTLocal(D, 16, 4, 3, window_only=True, **options),
        "conv": AFTConv(D, 4, 3, dims=1, **options),
        "conv raw": AFTConv(
            D, 4, 3, dims=1, reparameterise=False, **options
        ),
    }


def project(layer, x):
    """query, key and value of x, computed from the parameters."""
    p = dict(layer.named_parameters())
    return [
        linear(x, p[f"{name}.weight"], p[f"{name}.bias"])
        for name in ("query", "key", "value")
    ]


class TestAgainstFunctions(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.x = torch.randn(B, T, D)
        self.mask = torch.rand(B, T) < 0.3

    def check(self, layer, expected, *args, **options):
        y = layer(*args, **options)
        if layer.out is not None:
            expected = linear(expected, layer.out.weight, layer.out.bias)
        torch.testing.assert_close(y, expected)

    def test_sequences(self):
        x = self.x
        for causal in (False, True):
            for out in (False, True):
                common = {"causal": causal, "gate": "silu"}
                options = dict(common, key_padding_mask=self.mask)
                made = dict(common, out=out)

                layer = AFTSimple(D, **made)
                expected = aft.simple(*project(layer, x), **options)
                self.check(layer, expected, x, self.mask)

                # shorter than max_len: the first T positions
                layer = AFTFull(D, 16, 3, **made)
                biases = {"u": layer.u[:T], "v_pos": layer.v[:T]}
                expected = aft.full(*project(layer, x), **biases, **options)
                self.check(layer, expected, x, self.mask)

                layer = AFTFull(D, 16, dense=True, **made)
                w = layer.w[:T, :T]
                expected = aft.full(*project(layer, x), w=w, **options)
                self.check(layer, expected, x, self.mask)

                layer = AFTLocal(D, T, 4, 3, window_only=out, **made)
                biases = {"u": layer.u, "v_pos": layer.v, "window_only": out}
                expected = aft.local(*project(layer, x), 4, **biases, **options)
                self.check(layer, expected, x, self.mask)

    def test_window_of_zero(self):
        layer = AFTLocal(D, T, 0, causal=True)
        expected = aft.simple(*project(layer, self.x), causal=True)
        self.check(layer, expected, self.x)

    def test_position_biases_have_an_effect(self):
        for layer in (AFTFull(D, T, 3), AFTLocal(D, T, 4, 3)):
            before = layer(self.x)
            with torch.no_grad():
                layer.u.mul_(100), layer.v.mul_(100)
            change = (layer(self.x) - before).abs().max().item()
            self.assertGreater(change, 1e-3)

    def test_conv(self):
        for grid, kernel in [((12,), 3), ((3, 4), (3, 5)), ((2, 2, 3), 3)]:
            with self.subTest(grid=grid):
                layer = AFTConv(D, 4, kernel, dims=len(grid))
                torch.nn.init.normal_(layer.gamma)
                torch.nn.init.normal_(layer.beta)
                w = torch.stack(
                    [
                        g * (raw - raw.mean()) / (deviation(raw) + 1e-5) + b
                        for raw, g, b in zip(layer.w, layer.gamma, layer.beta)
                    ]
                )
                torch.testing.assert_close(layer.bias(), w)
                options = {"key_padding_mask": self.mask}
                args = project(layer, self.x)
                expected = aft.conv(*args, w, grid, **options)
                self.check(layer, expected, self.x, self.mask, grid=grid)
                rows = layer(self.x, self.mask, grid=grid)
                if len(grid) == 1:
                    torch.testing.assert_close(layer(self.x, self.mask), rows)
                    continue
                image = self.x.transpose(1, 2).reshape(B, D, *grid)
                flat = layer(image, self.mask.view(B, *grid))
                self.assertEqual(flat.shape, image.shape)
                torch.testing.assert_close(
                    flat, rows.transpose(1, 2).reshape_as(image)
                )

    def test_gumbel(self):
        x = torch.randn(2, 20, D)
        for dims, grid, causal in ((2, (4, 5), False), (1, (20,), True)):
            for only in (False, True):
                options = {"causal": causal, "window_only": only}
                layer = AFTConv(D, 4, 3, dims=dims, gumbel=0.5, **options)
                torch.nn.init.normal_(layer.gamma)
                torch.nn.init.normal_(layer.beta)
                w = layer.kernels().detach().flatten(1)
                drawn = layer.bias().detach().flatten(1) / w
                torch.testing.assert_close(drawn.sum(1), torch.ones(4))
                self.assertFalse(torch.equal(layer.bias(), layer.bias()))
                layer(x, grid=grid).square().sum().backward()
                self.assertGreater(layer.w.grad.abs().max().item(), 0)
                layer.eval()
                one = layer.bias().detach().flatten(1)
                self.assertTrue(one.ne(0).sum(1).eq(1).all())
                self.assertTrue(torch.equal(one.sum(1), w.max(1).values))
                dense = AFTConv(
                    D, 4, 3, dims=dims, reparameterise=False, **options
                )
                dense.load_state_dict(
                    {**layer.state_dict(), "w": layer.bias().detach()},
                    strict=False,
                )
                with torch.no_grad():
                    torch.testing.assert_close(
                        layer(x, grid=grid), dense(x, grid=grid)
                    )
        with self.assertRaisesRegex(ValueError, "gumbel must be 0"):
            AFTConv(D, 4, 3, gumbel=-1)
        self.assertIn("gumbel=0.5", repr(AFTConv(D, 4, 3, gumbel=0.5)))

    def test_raw_and_causal_conv(self):
        layer = AFTConv(
            D, 4, 4, 1, causal=True, reparameterise=False, window_only=True
        )
        self.assertNotIn("gamma", layer.state_dict())
        expected = aft.conv(
            *project(layer, self.x), layer.w, [T], causal=True, window_only=True
        )
        self.check(layer, expected, self.x, grid=[T])

    def test_without_query(self):
        for name, layer in layers(gate="none", out=False).items():
            with self.subTest(name):
                names = [n for n in layer.state_dict() if "query" in n]
                self.assertEqual(names, [])
                with torch.no_grad():  # a weighted mean stays in the range
                    value = getattr(layer, "conv", layer).value(self.x)
                    y = layer(self.x)
                self.assertTrue((y <= value.amax(1, True) + 1e-5).all())
                self.assertTrue((y >= value.amin(1, True) - 1e-5).all())


def deviation(raw):
    return ((raw - raw.mean()) ** 2).mean().sqrt()


class TestLayers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)
        self.x = torch.randn(B, T, D)

    def test_parameter_names_and_shapes(self):
        projections = {
            f"{name}.{kind}": shape
            for name in ("query", "key", "value", "out")
            for kind, shape in (("weight", (D, D)), ("bias", (D,)))
        }
        head = {"key.weight": (4, D), "key.bias": (4,), "w": (4, 3, 5)}
        for layer, others in [
            (AFTSimple(D), {}),
            (AFTFull(D, 16), {"u": (16, 128), "v": (16, 128)}),
            (AFTFull(D, 16, dense=True), {"w": (16, 16)}),
            (AFTLocal(D, 16, 4, 3), {"u": (16, 3), "v": (16, 3)}),
            (AFTLocal(D, 16, 0), {}),
            (AFTConv(D, 4, (3, 5)), {**head, "gamma": (4,), "beta": (4,)}),
            (AFTConv(D, 4, (3, 5), reparameterise=False), head),
        ]:
            shapes = {n: tuple(p.shape) for n, p in layer.named_parameters()}
            self.assertEqual(shapes, {**projections, **others})

    def test_start(self):
        layer = AFTFull(4, 512, 128)
        for bias in (layer.u, layer.v, AFTFull(4, 256, dense=True).w):
            self.assertAlmostEqual(bias.std().item(), 0.01, delta=0.001)
            self.assertAlmostEqual(bias.mean().item(), 0, delta=0.001)
        conv = AFTConv(8, 8, 11)
        self.assertEqual(conv.bias().abs().max().item(), 0)
        self.assertGreater(conv.w.flatten(1).std(1).min().item(), 0)
        raw = AFTConv(32, 32, 11, reparameterise=False)
        self.assertAlmostEqual(raw.bias().std().item(), 0.01, delta=0.001)

    def test_every_parameter_moves_within_two_steps(self):
        for name, layer in layers(causal=True).items():
            before = copy.deepcopy(layer.state_dict())
            optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
            target = torch.randn(B, T, D)
            for _ in range(2):
                optimiser.zero_grad()
                ((layer(self.x) - target) ** 2).mean().backward()
                optimiser.step()
            for n, p in layer.named_parameters():
                with self.subTest(name, parameter=n):
                    change = (p - before[n]).abs().max().item()
                    if n.endswith("key.bias"):  # cancels in num / den
                        self.assertLess(change, 1e-6)
                    else:
                        self.assertGreater(change, 1e-6)

    def test_positions_are_learned(self):
        # The input of three steps ago: easy with position biases (loss below
        # 0.01), impossible without (0.83 to 0.87).
        torch.manual_seed(3)
        for layer, low, high in [
            (AFTSimple(D, causal=True), 0.7, 1),
            (AFTFull(D, T, dense=True, causal=True), 0, 0.1),
            (AFTLocal(D, T, 5, rank=T, causal=True), 0, 0.1),
            (AFTConv(D, 4, 5, 1, causal=True), 0, 0.1),
        ]:
            optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
            losses = []
            for _ in range(150):
                x = torch.randn(16, T, D)
                loss = ((layer(x)[:, 3:] - x[:, :-3]) ** 2).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
            mean = sum(losses[-10:]) / 10
            self.assertTrue(low <= mean <= high, f"{layer}: {mean}")

    def test_call_shape_of_multihead_attention(self):
        attention = torch.nn.MultiheadAttention(D, 2, batch_first=True)
        mask = torch.zeros(B, T, dtype=torch.bool)
        mask[:, -4:] = True
        x, other = self.x, self.x.clone()
        other[:, -4:] = 100  # padding must not have an effect

        def attend(x):
            return attention(x, x, x, key_padding_mask=mask)[0]

        expected = attend(x)
        torch.testing.assert_close(attend(other)[:, :-4], expected[:, :-4])
        for name, layer in layers().items():
            with self.subTest(name):
                y = layer(x, key_padding_mask=mask)
                self.assertEqual(y.shape, expected.shape)
                self.assertEqual(y.dtype, expected.dtype)
                again = layer(other, key_padding_mask=mask)
                self.assertTrue(torch.equal(again[:, :-4], y[:, :-4]))
                self.assertFalse(torch.equal(layer(x)[:, :-4], y[:, :-4]))

    def test_causal(self):
        for name, layer in layers(causal=True).items():
            with self.subTest(name):
                other = self.x.clone()
                other[:, 7:] = torch.randn(B, T - 7, D)
                y, again = layer(self.x), layer(other)
                # the projections are matrix products: not bit-exact
                torch.testing.assert_close(y[:, :7], again[:, :7])
                short = layer(self.x[:, :7])
                torch.testing.assert_close(y[:, :7], short)

    def test_huge_keys(self):
        for name, layer in layers().items():
            with self.subTest(name), torch.no_grad():
                getattr(layer, "conv", layer).key.bias.fill_(1e4)
                getattr(layer, "conv", layer).key.weight.mul_(1e3)
            y = layer(self.x)
            y.sum().backward()
            self.assertTrue(y.isfinite().all(), name)
            for n, p in layer.named_parameters():
                self.assertTrue(p.grad.isfinite().all(), f"{name}: {n}")

    def test_kernel_of_one_tap(self):
        layer = AFTConv(D, 4, 1)
        layer(torch.randn(B, D, 3, 4)).sum().backward()
        for p in layer.parameters():
            self.assertTrue(p.grad.isfinite().all())

    def test_dtypes(self):
        for dtype in (torch.float64, torch.bfloat16):
            for name, layer in layers(dtype=dtype).items():
                with self.subTest(name, dtype=dtype):
                    y = layer(self.x.to(dtype))
                    self.assertEqual(y.dtype, dtype)
                    y.sum().backward()
                    for p in layer.parameters():
                        self.assertEqual(p.grad.dtype, dtype)

    def test_autocast(self):
        for name, layer in layers().items():
            with self.subTest(name):
                expected = layer(self.x)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y = layer(self.x)
                self.assertEqual(y.dtype, torch.bfloat16)
                torch.testing.assert_close(
                    y.float(), expected, rtol=0.05, atol=0.05
                )
                y.float().sum().backward()
                for p in layer.parameters():
                    self.assertEqual(p.grad.dtype, torch.float32)


class TestCopies(unittest.TestCase):
    def test_state_dict_deepcopy_save(self):
        torch.manual_seed(4)
        x = torch.randn(B, T, D)
        fresh = layers(causal=True)
        for name, layer in layers(causal=True).items():
            with self.subTest(name):
                y = layer(x)
                self.assertFalse(torch.equal(fresh[name](x), y))
                fresh[name].load_state_dict(layer.state_dict())
                self.assertTrue(torch.equal(fresh[name](x), y))
                clone = copy.deepcopy(layer)
                self.assertTrue(torch.equal(clone(x), y))
                file = io.BytesIO()
                torch.save(layer, file)
                file.seek(0)
                saved = torch.load(file)
                self.assertEqual(repr(saved), repr(layer))
                self.assertTrue(torch.equal(saved(x), y))
                with torch.no_grad():  # a copy is independent
                    for p in clone.parameters():
                        p.zero_()
                self.assertTrue(torch.equal(layer(x), y))

    def test_printed(self):
        layer = AFTLocal(4, 8, 3, rank=2, causal=True, gate="none", out=False)
        self.assertEqual(
            repr(layer),
            "AFTLocal(\n"
            "  dim=4, max_len=8, rank=2, window=3, causal=True, gate='none'\n"
            "  (key): Linear(in_features=4, out_features=4, bias=True)\n"
            "  (value): Linear(in_features=4, out_features=4, bias=True)\n"
            ")",
        )
        for layer, words in [
            (AFTSimple(4), "dim=4, causal=False, gate='sigmoid'"),
            (AFTFull(4, 8, dense=True), "max_len=8, dense=True, causal=False"),
            (AFTLocal(4, 8, 3, window_only=True), "window=3, window_only=True"),
            (AFTConv(4, 2, (3, 5)), "heads=2, kernel=3x5, causal=False"),
        ]:
            self.assertIn(words, layer.extra_repr())


def load_tests(loader, tests, pattern):
    tests.addTests(doctest.DocTestSuite(aft.nn))
    return tests


if __name__ == "__main__":
    unittest.main()
