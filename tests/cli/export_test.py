"""Import and export of weights: from a ViT file to a model with the same outputs
as an independent implementation, and back; invalid files. Argument: the
program."""

import json
import math
import random

import torch
from torch.nn import functional as F

from images import png
from program import ProgramTest, main, sets
from tensors import load_tensors, save_tensors

WIDTH, LAYERS, MLP, PATCH, SIDE, CLASSES, HEADS = 32, 2, 2, 4, 3, 7, 4
PIXELS = SIDE * PATCH
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def save(path, tensors):
    save_tensors(path, {k: (list(x.shape), x.flatten().tolist())
                        for k, x in tensors.items()})  # fmt: skip


def load(path):
    """Returns the tensors and the metadata."""
    tensors, metadata = load_tensors(path)
    return {
        name: torch.tensor(numbers).reshape(shape)
        for name, (shape, numbers) in tensors.items()
    }, metadata


def vit():
    """A ViT with the names of timm."""
    torch.manual_seed(1)
    out = {}

    def linear(name, *shape):
        out[name + ".weight"] = torch.randn(shape) / math.sqrt(shape[-1])
        out[name + ".bias"] = torch.randn(shape[0]) * 0.3

    def norm(name):
        out[name + ".weight"] = 1 + 0.3 * torch.randn(WIDTH)
        out[name + ".bias"] = 0.3 * torch.randn(WIDTH)

    linear("patch_embed.proj", WIDTH, 3, PATCH, PATCH)
    out["cls_token"] = torch.randn(1, 1, WIDTH)
    out["pos_embed"] = torch.randn(1, 1 + SIDE * SIDE, WIDTH)
    for i in range(LAYERS):
        block = f"blocks.{i}."
        norm(block + "norm1")
        linear(block + "attn.qkv", 3 * WIDTH, WIDTH)
        linear(block + "attn.proj", WIDTH, WIDTH)
        norm(block + "norm2")
        linear(block + "mlp.fc1", MLP * WIDTH, WIDTH)
        linear(block + "mlp.fc2", WIDTH, MLP * WIDTH)
    norm("norm")
    linear("head", CLASSES, WIDTH)
    return out


# ---- Reference networks ------------------------------------------------------


def attention(t, name, x):
    B, T, D = x.shape
    q, k, v = F.linear(x, t[name + "qkv.weight"], t[name + "qkv.bias"]).reshape(
        B, T, 3, HEADS, D // HEADS
    ).permute(2, 0, 3, 1, 4)  # fmt: skip
    weights = (q @ k.transpose(-1, -2) / math.sqrt(D // HEADS)).softmax(-1)
    y = (weights @ v).transpose(1, 2).reshape(B, T, D)
    return F.linear(y, t[name + "proj.weight"], t[name + "proj.bias"])


def aft_conv(t, name, x):
    """y_t = sigmoid(q_t) sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj), with
    w_tj taken from the kernel at the offset of j from t, and 0 outside of it."""

    def project(part):
        return F.linear(x, t[f"{name}{part}.weight"], t[f"{name}{part}.bias"])

    q, k, v = project("query"), project("key"), project("value")
    raw = t[name + "w"]
    heads, size = raw.shape[0], raw.shape[1]
    mean = raw.mean((1, 2), keepdim=True)
    scale = raw.flatten(1).std(1, unbiased=False)[:, None, None] + 1e-5
    kernel = t[name + "gamma"][:, None, None] * (raw - mean) / scale
    kernel = kernel + t[name + "beta"][:, None, None]
    T = SIDE * SIDE
    w = torch.zeros(heads, T, T)
    for a in range(T):
        for b in range(T):
            down = b // SIDE - a // SIDE + size // 2
            right = b % SIDE - a % SIDE + size // 2
            if 0 <= down < size and 0 <= right < size:
                w[:, a, b] = kernel[:, down, right]
    weights = (k.transpose(1, 2)[:, :, None, :] + w).exp()  # [B, heads, T, T]
    v = v.reshape(1, T, heads, -1).transpose(1, 2)
    y = weights @ v / weights.sum(-1, keepdim=True)
    y = q.sigmoid() * y.transpose(1, 2).reshape(1, T, WIDTH)
    return F.linear(y, t[name + "proj.weight"], t[name + "proj.bias"])


def probabilities(t, pixels, mixer):
    image = torch.tensor(pixels).reshape(PIXELS, PIXELS, 3) / 255
    image = (image - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    x = F.conv2d(
        image.permute(2, 0, 1)[None],
        t["patch_embed.proj.weight"], t["patch_embed.proj.bias"], stride=PATCH,
    ).flatten(2).transpose(1, 2)  # fmt: skip
    if "cls_token" in t:
        x = torch.cat([t["cls_token"], x], 1)
    if "pos_embed" in t:
        x = x + t["pos_embed"]

    def norm(name, x):
        weight, bias = t[name + ".weight"], t[name + ".bias"]
        return F.layer_norm(x, (WIDTH,), weight, bias, 1e-6)

    def linear(name, x):
        return F.linear(x, t[name + ".weight"], t[name + ".bias"])

    for i in range(LAYERS):
        block = f"blocks.{i}."
        x = x + mixer(t, block + "attn.", norm(block + "norm1", x))
        inside = F.gelu(linear(block + "mlp.fc1", norm(block + "norm2", x)))
        x = x + linear(block + "mlp.fc2", inside)
    x = norm("norm", x)
    x = x[:, 0] if "cls_token" in t else x.mean(1)
    return linear("head", x).softmax(-1)[0]


class TestWeights(ProgramTest):
    def setUp(self):
        super().setUp()
        self.vit, self.model = self.work / "vit.safetensors", self.work / "model"
        self.out = self.work / "out.safetensors"
        self.weights = vit()
        save(self.vit, self.weights)
        chosen = random.Random(1)
        self.pixels = [
            [chosen.randrange(256) for _ in range(3 * PIXELS)] for _ in range(PIXELS)
        ]
        self.image = self.work / "x.png"
        self.image.write_bytes(png([bytes(row) for row in self.pixels]))

    def imported(self, *arguments):
        words = ["import", self.vit, "--out", self.model, *arguments]
        return self.succeed(*words).stdout

    def exported(self, names):
        self.succeed("export", self.model, "--out", self.out, "--names", names)
        return load(self.out)

    def check_output(self, expected):
        """Checks the classification of the image."""
        said = json.loads(
            self.succeed("classify", self.model, self.image, "--json", "--crop", 1,
                         "--top", CLASSES).stdout
        )  # fmt: skip
        self.assertEqual([str(self.image)], [x["file"] for x in said])
        top = said[0]["top"]
        self.assertEqual(CLASSES, len(top))
        self.assertEqual(expected.argsort(descending=True).tolist(),
                         [x["class"] for x in top])  # fmt: skip
        for x in top:
            self.assertAlmostEqual(
                expected[x["class"]].item(), x["probability"], delta=1e-4
            )
        # Far from the output of an untrained model.
        self.assertGreater(top[0]["probability"], 1.5 / CLASSES)
        return top

    def test_a_vit_matches_torch(self):
        told = self.imported("--heads", HEADS)
        parameters = sum(x.numel() for x in self.weights.values())
        self.assertIn(f"{parameters} parameters", told)
        self.assertIn(f"`aft classify {self.model} photo.jpg`", told)
        self.assertNotIn("newly initialised", told)
        self.assertIn("no names", told)
        expected = probabilities(self.weights, self.pixels, attention)
        top = self.check_output(expected)
        self.assertEqual(f"class {top[0]['class']}", top[0]["label"])
        config = json.loads((self.model / "config.json").read_text())
        self.assertEqual("classification", config["task"])
        self.assertEqual(HEADS, config["model"]["heads"])
        self.assertEqual(PIXELS, config["data"]["height"])
        # Exported bit-exactly, and imported again with the other names.
        out, metadata = self.exported("timm")
        self.assertEqual("pt", metadata["format"])
        self.assertEqual(set(self.weights), set(out))
        for name, x in self.weights.items():
            self.assertTrue(torch.equal(x, out[name]), name)
        first = self.out.read_bytes()
        self.succeed("export", self.model, "--out", self.out)  # the default
        self.assertEqual(first, self.out.read_bytes())
        self.assertIn("vit.encoder.layer.1.attention.attention.key.bias",
                      self.exported("hf")[0])  # fmt: skip
        self.vit, before = self.out, (self.model / "model.safetensors").read_bytes()
        self.model = self.work / "again"
        self.imported("--heads", HEADS)
        self.assertEqual(before, (self.model / "model.safetensors").read_bytes())
        self.assertIn("blocks_0.mixer.qkv.weight", self.exported("aft")[0])

    def test_aft_conv_matches_torch(self):
        told = self.imported("--to", "aft-conv", "--heads", 8, "--kernel", 3)
        fresh = told.split("newly initialised: ")[1].splitlines()[0]
        for part in ("query", "key", "w", "gamma", "beta"):
            self.assertIn(f"blocks.mixer.{part}", fresh)
        self.assertNotIn("value", fresh)
        config = json.loads((self.model / "config.json").read_text())["model"]
        self.assertEqual(("mean", False), (config["pool"], config["positions"]))
        self.assertEqual((8, 3), (config["heads"], config["window"]))
        # The biases are initially 0: set them to other values.
        weights, _ = load(self.model / "model.safetensors")
        torch.manual_seed(2)
        for name, x in weights.items():
            if name.split(".")[-1] in ("gamma", "beta"):
                x.add_(2 * torch.randn_like(x))
            elif ".mixer.key." in name:
                x.add_(torch.randn_like(x))
            elif ".mixer.query." in name:
                x.add_(0.3 * torch.randn_like(x))
        save(self.model / "model.safetensors", weights)
        out, _ = self.exported("timm")
        for i in range(LAYERS):
            attn = f"blocks.{i}.attn."
            for leaf in (".weight", ".bias"):
                values = self.weights[attn + "qkv" + leaf][2 * WIDTH :]
                self.assertTrue(torch.equal(values, out[attn + "value" + leaf]))
        self.assertTrue(torch.equal(self.weights["head.bias"], out["head.bias"]))
        self.assertEqual((8, 3, 3), tuple(out["blocks.1.attn.w"].shape))
        self.assertNotIn("cls_token", out)
        expected = probabilities(out, self.pixels, aft_conv)
        self.check_output(expected)
        for name in ("gamma", "beta"):  # each has an effect
            off = {f"blocks.{i}.attn.{name}": torch.zeros(8) for i in range(LAYERS)}
            other = {**out, **off}
            change = probabilities(other, self.pixels, aft_conv) - expected
            self.assertGreater(change.abs().max(), 1e-3, name)
        self.fails(1, ["aft-conv", "timm"], "export", self.model, "--out",
                   self.work / "none", "--names", "hf")  # fmt: skip
        self.assertFalse((self.work / "none").exists())

    def test_defaults_and_seeds(self):
        for to, seed, key in (("aft-conv", 1, 1), ("aft-conv", 2, 2),
                              ("aft-full", 1, 3)):  # fmt: skip
            self.model = self.work / str(key)
            self.imported("--to", to, "--seed", seed)
        read = {k: load(self.work / k / "model.safetensors")[0] for k in "123"}
        name = "blocks_0.mixer.query.weight"
        self.assertFalse(torch.equal(read["1"][name], read["2"][name]))
        self.assertEqual((32, 11, 11), tuple(read["1"]["blocks_0.mixer.w"].shape))
        self.assertEqual((10, 128), tuple(read["3"]["blocks_0.mixer.u"].shape))
        self.assertTrue(
            torch.equal(read["3"]["positions"], self.weights["pos_embed"][0])
        )
        self.model = self.work / "larger"
        self.imported("--heads", 4, "--set", "data.height=16", "--set", "data.width=20")
        larger = load(self.model / "model.safetensors")[0]["positions"]
        self.assertEqual((1 + 4 * 5, WIDTH), tuple(larger.shape))
        self.assertTrue(torch.equal(larger[0], self.weights["pos_embed"][0, 0]))

    def test_labels(self):
        table = self.work / "labels.tsv"

        def refused(words, *lines):
            table.write_text("\n".join(lines) + "\n")
            self.fails(1, [table, *words], "import", self.vit, "--out", self.model,
                       "--heads", 4, "--labels", table)  # fmt: skip
            self.assertFalse(self.model.exists())

        header = "file\tclass_index\twnid\tname"
        refused(["line 1", "class_index"], "file\tname")
        refused(["at most the 7", "got 8"], header, "a.jpg\t7\tn01\tcat")
        refused(["line 2", "'-1'"], header, "a.jpg\t-1\tn01\tcat")
        refused(["line 2", "'x'"], header, "a.jpg\tx\tn01\tcat")
        refused(["line 3", "4 columns", "got 2"], header, "a\t1\tn\tc", "a\t2")
        refused(["line 3", "n01 cat", "n02 dog"],
                header, "a\t1\tn01\tcat", "b\t1\tn02\tdog")  # fmt: skip
        table.unlink()
        self.fails(1, [table], "import", self.vit, "--out", self.model, "--heads", 4,
                   "--labels", table)  # fmt: skip
        table.write_text(f"{header}\nb\t2\tn02\tgrey wolf, café\na\t0\tn00\tcat\n")
        self.assertNotIn("no names", self.imported("--heads", 4, "--labels", table))
        config = json.loads((self.model / "config.json").read_text())
        self.assertEqual(["n00 cat", "class 1", "n02 grey wolf, café", "class 3"],
                         config["data"]["classes"][:4])  # fmt: skip
        self.assertEqual(CLASSES, config["model"]["classes"])
        # A new head for weights without one.
        for name in ("head.weight", "head.bias"):
            del self.weights[name]
        save(self.vit, self.weights)
        self.model = self.work / "headless"
        words = ["import", self.vit, "--out", self.model, "--heads", 4]
        self.fails(2, ["no classification head", "--labels"], *words)
        told = self.succeed(*words, "--labels", table).stdout
        self.assertIn("head", told.split("newly initialised")[1])
        self.assertEqual(
            3, len(load(self.model / "model.safetensors")[0]["head.bias"])
        )

    def test_failures_leave_nothing(self):
        bad = self.work / "bad.safetensors"
        words = ["--out", self.model, "--heads", 4]
        for change, said in (
            (lambda t: t.pop("norm.bias"), "norm.bias"),
            (lambda t: t["norm.bias"].fill_(math.nan), "finite"),
            (lambda t: t.update(dist_token=torch.ones(1, 1, WIDTH)), "distilled"),
            (lambda t: t.clear(), "known ViT"),
        ):
            weights = vit()
            change(weights)
            save(bad, weights)
            self.fails(1, [bad, said], "import", bad, *words)
        bad.write_bytes(b"not weights")
        self.fails(1, [bad], "import", bad, *words)
        self.fails(1, ["nowhere"], "import", self.work / "nowhere", *words)
        self.fails(2, ["--heads", "32"], "import", self.vit, "--out", self.model)
        self.fails(1, ["heads", "5"], "import", self.vit, "--out", self.model,
                   "--heads", 5)  # fmt: skip
        self.fails(2, ["--to", "aft-conv"], "import", self.vit, *words, "--to", "conv")
        for seed in (-1, "abc"):
            self.fails(2, ["--seed", seed], "import", self.vit, *words, "--seed", seed)
        self.fails(2, ["--kernel"], "import", self.vit, *words, "--kernel", 3)
        self.fails(2, ["--rank"], "import", self.vit, *words, "--rank", 3)
        self.fails(1, ["odd"], "import", self.vit, "--out", self.model, "--to",
                   "aft-conv", "--kernel", 4)  # fmt: skip
        self.fails(1, ["model.layers"], "import", self.vit, *words, "--set",
                   "model.layers=3")  # fmt: skip
        self.assertFalse(self.model.exists())
        # An existing model is kept.
        self.imported("--heads", 4)
        before = {p.name: p.read_bytes() for p in self.model.iterdir()}
        self.assertEqual({"config.json", "model.safetensors"}, set(before))
        self.fails(1, [self.model, "already"], "import", self.vit, *words)
        self.fails(2, ["of a run directory"], "export", self.model, "--out",
                   self.model / "model.safetensors")  # fmt: skip
        self.fails(2, ["--names"], "export", self.model, "--out", self.out,
                   "--names", "onnx")  # fmt: skip
        self.fails(1, [self.work], "export", self.work, "--out", self.out)
        after = {p.name: p.read_bytes() for p in self.model.iterdir()}
        self.assertEqual(before, after)
        self.assertFalse(self.out.exists())

    def test_other_tasks_support_only_aft_names(self):
        words = sets(
            model__layers=1, model__width=16, model__window=8, model__rank=4,
            model__length=32, train__batch_size=2, train__steps=2,
        )  # fmt: skip
        self.succeed("train", "text-aft-local-4x128", "--out", self.model, *words)
        self.succeed("export", self.model, "--out", self.out)
        ours, _ = load(self.model / "model.safetensors")
        out, metadata = load(self.out)
        self.assertEqual("pt", metadata["format"])
        self.assertEqual(set(ours), set(out))
        for name, x in ours.items():
            self.assertTrue(torch.equal(x, out[name]), name)
        self.fails(2, ["timm", "language"], "export", self.model, "--out",
                   self.work / "none", "--names", "timm")  # fmt: skip


if __name__ == "__main__":
    main()
