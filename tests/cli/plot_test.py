"""Tests `aft plot`: the files that it writes for every kind of model, and its page in
a real browser, where the values under the mouse must be those of the weights.
Argument: the program."""

import base64
import json
import math
import os
import re
import shutil
import struct
import tempfile
import unittest
from pathlib import Path

from browser import Browser
from images import SIGNATURE, folder, noise
from program import ProgramTest, aft, lines_of, main, sets
from tensors import load_tensors, save_tensors

os.environ["OMP_NUM_THREADS"] = "1"
SIDE, PATCH, LAYERS, HEADS, WINDOW = 16, 4, 2, 4, 3
GRID = SIDE // PATCH
GAMMA = 0.2
CLASSES = sets(
    model__layers=LAYERS, model__width=16, model__patch=PATCH, data__height=SIDE,
    data__width=SIDE, data__valid_images=12, train__batch_size=4, train__steps=12,
    train__validate_every=4, train__report_every=2, train__save_every=12,
)  # fmt: skip
PIXELS = sets(
    model__layers=1, model__width=16, model__window=8, model__rank=4,
    data__height=4, data__width=6, data__valid_images=10, train__batch_size=2,
    train__validate_every=4, train__save_every=8, train__report_every=4, train__steps=8,
)  # fmt: skip
TEXT = sets(
    model__layers=2, model__width=16, model__length=32, model__window=8,
    model__heads=HEADS, data__valid_bytes=500, train__batch_size=2, train__steps=4,
    train__validate_every=4, train__save_every=4, train__report_every=2,
)  # fmt: skip
MODELS = {
    "conv": ("classify-aft-conv-4x96",
             CLASSES + sets(model__heads=HEADS, model__window=WINDOW)),
    "full": ("classify-aft-full-4x96", CLASSES),
    "attention": ("classify-transformer-4x96",
                  CLASSES + sets(model__heads=2, model__patch=SIDE // 2)),
    "pixels": ("image-aft-local-4x128", PIXELS),
    "gumbel": ("classify-aft-conv-4x96",
               CLASSES + sets(model__heads=HEADS, model__window=WINDOW,
                              model__gumbel=0.5)),
    "text": ("text-aft-conv-4x128", TEXT),
}  # fmt: skip
NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?)"


def setUpModule():
    global SHARED, PHOTOS
    SHARED = Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
    for name, (preset, words) in MODELS.items():
        done = aft("train", preset, "--out", SHARED / name, *words)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    PHOTOS = folder(SHARED / "photos", [noise(20, 24) for _ in range(3)])
    # Kernels that can be computed by hand, with a different value at every tap.
    for model, window in (("conv", (WINDOW, WINDOW)), ("gumbel", (WINDOW, WINDOW)),
                          ("text", (8,))):  # fmt: skip
        path = SHARED / model / "model.safetensors"
        tensors, _ = load_tensors(path)
        for name, (shape, numbers) in tensors.items():
            if name.endswith("mixer.w"):
                assert shape == [HEADS, *window], shape
                taps = len(numbers) // HEADS
                numbers = [float(i % taps) for i in range(len(numbers))]
            if name.endswith("mixer.gamma"):
                numbers = [GAMMA] * len(numbers)
            if name.endswith("mixer.beta"):
                numbers = [beta(layer_of(name), i) for i in range(len(numbers))]
            tensors[name] = (shape, numbers)
        save_tensors(path, tensors)


def layer_of(name):
    return int(re.search(r"\d+", name).group())


def beta(layer, head):
    return 0.1 * (head + 1) - 0.15 * layer


def kernel(layer, head, tap, taps):
    """The bias w of a tap: gamma (raw - mean) / std + beta, raw = 0 ... taps - 1."""
    mean = (taps - 1) / 2
    spread = math.sqrt((taps * taps - 1) / 12) + 1e-5
    return GAMMA * (tap - mean) / spread + beta(layer, head)


def maps_of(out, figure):
    """The maps of a figure on its page: name, and rows of values."""
    page = (out / "index.html").read_text()
    section = page.split(f'<section id="{figure}">')[1].split("</section>")[0]
    data = re.search(r'<script type="application/json">(.*?)</script>', section)
    maps = []
    for each in json.loads(data.group(1))["maps"]:
        rows, columns = each["cells"]
        assert each["bits"] == 32, each["bits"]
        raw = base64.b64decode(each["values"])
        values = struct.unpack(f"<{len(raw) // 4}f", raw)
        maps.append((each["name"], [values[columns * i : columns * (i + 1)]
                                    for i in range(rows)]))  # fmt: skip
    return maps


def size(path):
    """Width and height of a PNG."""
    data = path.read_bytes()
    assert data[:8] == SIGNATURE, data[:8]
    return struct.unpack_from(">II", data, 16)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


class PlotTest(ProgramTest):
    def plot(self, name, *arguments):
        """The directory with the figures."""
        out = self.work / "plots"
        self.succeed("plot", SHARED / name, "--out", out, *arguments)
        return out


class TestFiles(PlotTest):
    def test_every_kind_of_model(self):
        image = sorted(PHOTOS.iterdir())[0]
        for name, words, figures in (
            ("conv", ["--image", image, "--image", image],
             ["biases", "curve", "keys-1", "keys-2"]),
            ("full", ["--runs", SHARED / "conv"], ["biases", "curve", "curves"]),
            ("attention", ["--images", PHOTOS, "--limit", 2, "--divisor", "pairs"],
             ["attention", "curve"]),
            ("pixels", ["--completions", 2], ["biases", "completions", "curve"]),
            ("pixels", ["--completions", 0, "--each"], ["biases", "curve"]),
            ("gumbel", ["--image", image, "--size", 2 * SIDE, "--crop", 1],
             ["biases", "curve", "keys-1"]),
            ("text", ["--range", -1, 1], ["biases", "curve"]),
        ):  # fmt: skip
            with self.subTest(name):
                out = self.plot(name, *words)
                files = sorted(["index.html"] + [f + ".png" for f in figures])
                self.assertEqual(names(out), files)
                for figure in figures:
                    width, height = size(out / (figure + ".png"))
                    self.assertGreater(min(width, height), 40)
                    self.assertLess(max(width, height), 3000)
                page = (out / "index.html").read_text()
                for figure in figures:
                    self.assertIn(f'<section id="{figure}">', page)
                captions = re.findall(r"Figure \d+\.</b> (.*?)</figcaption>", page)
                self.assertEqual(len(captions), len(figures))
                for caption in captions:
                    self.assertRegex(caption, r"^\S.{20,}\.$")
                shutil.rmtree(out)

    def test_values(self):
        """Every value of 2d and 1d kernels is at the right position."""
        for name, shape in (("conv", (WINDOW, WINDOW)), ("text", (HEADS, 8))):
            maps = maps_of(self.plot(name), "biases")
            line, taps = name == "text", math.prod(shape)
            self.assertEqual(len(maps), LAYERS if line else LAYERS * HEADS)
            for i, (title, rows) in enumerate(maps):
                layer, head = (i, 0) if line else divmod(i, HEADS)
                wanted = f"layer {layer + 1}" + ("" if line else f", head {head + 1}")
                self.assertEqual(title, wanted)
                self.assertEqual((len(rows), len(rows[0])), shape)
                for y, row in enumerate(rows):
                    for x, got in enumerate(row):
                        w = (kernel(layer, y, x, 8) if line else
                             kernel(layer, head, WINDOW * y + x, taps))  # fmt: skip
                        self.assertAlmostEqual(got, math.expm1(w), 5)

    def test_one_position_per_head(self):
        out = self.plot("gumbel")
        for i, (_, rows) in enumerate(maps_of(out, "biases")):
            *others, last = [x for row in rows for x in row]
            self.assertEqual(others, [0] * (WINDOW * WINDOW - 1))
            w = kernel(*divmod(i, HEADS), WINDOW * WINDOW - 1, WINDOW * WINDOW)
            self.assertAlmostEqual(last, math.expm1(w), 5)
        head = (out / "index.html").read_text().split("</header>")[0]
        self.assertIn("one position per head (gumbel 0.5)", head)
        self.assertIn("softmax(w)", head)
        other = (self.plot("conv") / "index.html").read_text().split("</header>")[0]
        self.assertNotIn("one position", other)

    def test_scales_and_sizes(self):
        image = sorted(PHOTOS.iterdir())[0]
        png = [(self.plot("conv", *words) / "biases.png").read_bytes()
               for words in ([], ["--range", -1, 1], ["--range", -9, 9])]  # fmt: skip
        self.assertEqual(len(set(png)), 3)
        for side in (SIDE, 2 * SIDE):
            out = self.plot("conv", "--image", image, "--size", side)
            rows = maps_of(out, "keys-1")[0][1]
            self.assertEqual((len(rows), len(rows[0])), (side // PATCH,) * 2)

    def test_moved_data(self):
        """Completions are skipped, and the other figures are drawn."""
        data, model = self.work / "data", self.work / "model"
        folder(data, [noise(4, 6) for _ in range(30)])
        self.succeed("train", MODELS["pixels"][0], "--data", data, "--out", model,
                     *PIXELS)  # fmt: skip
        data.rename(self.work / "elsewhere")
        out = self.work / "plots"
        done = self.succeed("plot", model, "--out", out)
        self.assertEqual(names(out), ["biases.png", "curve.png", "index.html"])
        (note,) = lines_of(done.stderr, "note: ")
        self.assertIn(str(data), note)
        self.assertIn("--completions 0", note)
        done = self.succeed("plot", model, "--out", out, "--completions", 0)
        self.assertEqual(lines_of(done.stderr, "note: "), [])

    def test_weights(self):
        """A run that was stopped before its first validation has only a checkpoint."""
        young = self.work / "young"
        shutil.copytree(SHARED / "conv", young)
        (young / "model.safetensors").unlink()
        out = self.work / "new/deep/plots"
        done = self.succeed("plot", young, "--out", out)
        (said,) = lines_of(done.stderr, "weights of step")
        self.assertTrue(said.startswith(f"{young}: weights of step 12, "), said)
        self.assertEqual(names(out), ["biases.png", "curve.png", "index.html"])
        checkpoint = young / "state/checkpoint.safetensors"
        checkpoint.unlink()
        for option in ("--image", "--images"):
            self.fails(2, [option + " ", young / "model.safetensors", checkpoint],
                       "plot", young, option, PHOTOS)  # fmt: skip
        done = self.succeed("plot", young)
        self.assertEqual(names(young / "plots"), ["curve.png", "index.html"])
        (note,) = lines_of(done.stderr, "note: ")
        self.assertIn(str(young / "model.safetensors"), note)

    def test_missing_runs(self):
        """Errors come before anything is drawn."""
        out, nowhere, empty = (self.work / x for x in ("out", "nowhere", "empty"))
        empty.mkdir()
        fresh = self.work / "fresh"
        fresh.mkdir()
        (fresh / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
        # The missing image would be found later.
        words = ["plot", SHARED / "conv", "--out", out, "--image", "missing.png"]
        for run, wanted in (
            (nowhere, [nowhere, "directory"]),
            (empty, [empty / "metrics.jsonl", "does not exist"]),
            (fresh, [fresh / "metrics.jsonl", "validation"]),
        ):
            self.fails(1, wanted, *words, "--runs", SHARED / "full", run)
        self.assertFalse(out.exists())

    def test_deterministic(self):
        model = self.work / "model"
        shutil.copytree(SHARED / "conv", model)
        words = ["--image", sorted(PHOTOS.iterdir())[0], "--each", "--heads", 2]
        self.succeed("plot", model, *words)
        first = {path: path.read_bytes() for path in (model / "plots").iterdir()}
        self.assertIn(model / "plots/index.html", first)
        self.succeed("plot", model, *words)
        for path, content in first.items():
            self.assertEqual(path.read_bytes(), content, path)

    def test_usage_errors(self):
        self.fails(1, [self.work / "none"], "plot", self.work / "none")
        self.fails(2, ["--range"], "plot", SHARED / "conv", "--range", 1, 0)
        self.fails(2, ["--image"], "plot", SHARED / "pixels", "--image", "x.png")
        # Options that would have no effect.
        self.fails(2, ["--each", "--range"], "plot", SHARED / "conv", "--each",
                   "--range", 0, 1)  # fmt: skip
        for option, value in (("--limit", 4), ("--divisor", "queries")):
            self.fails(2, [option, "--images"], "plot", SHARED / "attention",
                       option, value)  # fmt: skip
        (self.work / "file").write_text("")
        out = self.work / "file/plots"
        self.fails(1, [out], "plot", SHARED / "conv", "--out", out)
        self.fails(1, ["missing.png"], "plot", SHARED / "conv", "--image",
                   self.work / "missing.png")  # fmt: skip
        empty = self.work / "empty"
        empty.mkdir()
        self.fails(1, [empty], "plot", SHARED / "attention", "--images", empty)


class TestPage(PlotTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())

    def open(self, *arguments):
        out = self.plot(*arguments)
        self.browser.open(out / "index.html")
        return out

    def check(self, out):
        """All figures are shown, without errors and without external requests."""
        for name, width, height in self.browser.images():
            # The files also have the title and the caption.
            file_width, file_height = size(out / (name + ".png"))
            self.assertEqual(file_width, max(width, 480), name)
            self.assertGreater(file_height, height + 50, name)
            self.assertGreater(min(width, height), 0, name)
        files = [path.stem for path in out.glob("*.png")]
        self.assertEqual(sorted(self.browser.sections()), sorted(files))
        self.assertEqual(self.browser.errors(), [])
        self.assertEqual(self.browser.requests(), [])

    def value(self, lines, name, place):
        """The value in a tooltip."""
        self.assertEqual(len(lines), 3, lines)
        self.assertEqual(lines[:2], [name, place])
        return float(re.fullmatch(r".*: " + NUMBER, lines[2]).group(1))

    def near(self, got, wanted):
        """Equal to four digits."""
        self.assertAlmostEqual(got, wanted, delta=6e-4 * abs(wanted) + 1e-7)

    def test_kernels(self):
        out = self.open("conv", "--image", sorted(PHOTOS.iterdir())[0])
        self.check(out)
        for layer in range(LAYERS):
            for head, y, x in ((0, 0, 2), (0, 2, 0), (HEADS - 1, 0, 1)):
                lines = self.browser.hover("biases", layer * HEADS + head, y, x)
                place = f"dy {y - WINDOW // 2}, dx {x - WINDOW // 2}"
                name = f"layer {layer + 1}, head {head + 1}"
                got = self.value(lines, name, place)
                w = kernel(layer, head, WINDOW * y + x, WINDOW * WINDOW)
                self.near(got, math.expm1(w))
        # The marker surrounds the cell under the mouse.
        left, top, width, height = self.browser.marked("biases")
        self.assertGreater(min(width, height), 2)
        self.browser.move(left + width + 1, top + 1)
        self.assertNotEqual(self.browser.marked("biases")[:1], [left])
        lines = self.browser.hover("keys-1", 1, GRID - 1, 0)
        self.value(lines, "layer 1, head 2", f"row {GRID - 1}, column 0")
        self.browser.move(2, 2)
        self.assertEqual(self.browser.tip(), [])

    def test_pairs(self):
        out = self.open("full")
        self.check(out)
        tensors, _ = load_tensors(SHARED / "full/model.safetensors")
        (T, rank), u = tensors[min(n for n in tensors if n.endswith("mixer.u"))]
        _, v = tensors[min(n for n in tensors if n.endswith("mixer.v"))]
        for t, j in ((0, 0), (3, T - 1), (T - 1, 5)):
            lines = self.browser.hover("biases", 0, t, j)
            w = sum(u[t * rank + r] * v[j * rank + r] for r in range(rank))
            self.near(self.value(lines, "layer 1", f"t {t}, j {j}"), math.exp(w))

    def test_attention(self):
        out = self.open("attention", "--images", PHOTOS)
        self.check(out)
        total = 0
        for row in range(3):  # two patches per side
            for column in range(3):
                lines = self.browser.hover("attention", 0, row, column)
                place = f"dy {row - 1}, dx {column - 1}"
                total += self.value(lines, "layer 1, head 1", place)
        # The remainder is attention to the class token, if any.
        self.assertGreater(total, 0.5)
        self.assertLess(total, 1.001)

    def test_arrow_keys(self):
        self.open("conv")
        for keys, name, place in (
            (["RIGHT"], "layer 1, head 1", "dy -1, dx -1"),
            (["RIGHT", "DOWN"], "layer 1, head 1", "dy 0, dx 0"),
            (["RIGHT", "RIGHT"], "layer 1, head 2", "dy 0, dx -1"),
            (["DOWN", "DOWN"], "layer 2, head 2", "dy -1, dx -1"),
            (["LEFT", "UP"], "layer 1, head 1", "dy 1, dx 1"),
            (["UP"] * 9 + ["RIGHT"] * 99, f"layer 1, head {HEADS}", "dy -1, dx 1"),
        ):
            self.value(self.browser.press("biases", *keys), name, place)
        self.assertEqual(self.browser.press("biases", "ESCAPE"), [])

    def test_charts_and_images(self):
        out = self.open("pixels")
        self.check(out)
        self.assertIn("completions", [name for name, *_ in self.browser.images()])
        lines = self.browser.hover_point("curve", 0)
        self.assertEqual(lines[0], "training")
        self.assertRegex(lines[1], r"^step: \d+$")
        self.assertRegex(lines[2], r"^bits/dim: " + NUMBER + "$")


if __name__ == "__main__":
    main()
