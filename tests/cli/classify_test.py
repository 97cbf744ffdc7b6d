"""Classifiers: accuracies on data with known answers, all image formats, the
benchmark of trained models, invalid models and usage errors. Argument: the
program."""

import json
import math
import os
import signal
from pathlib import Path

from classes import COLOURS, NAMES, ClassesTest, class_folder, painted
from images import RANDOM, jpeg, noise, png
from program import BENCH, aft, main, sets
from tensors import load_tensors, save_tensors

os.environ["OMP_NUM_THREADS"] = "1"
SIDE = ClassesTest.SIDE


def flat(colour, height=SIDE, width=SIDE):
    return [bytes(colour) * width] * height


def copy(model, to, name="", content=b""):
    """Copies a model directory and replaces the content of one file."""
    to.mkdir()
    for each in ("config.json", "model.safetensors"):
        (to / each).write_bytes((model / each).read_bytes())
    if name:
        (to / name).write_bytes(content)
    return to


def constant_model(model, to):
    """Copies a model and makes its output the same for every image, with the classes
    ranked in order. Returns their probabilities."""
    copy(model, to)
    tensors, _ = load_tensors(model / "model.safetensors")
    (count, width), _ = tensors["head.weight"]
    tensors["head.weight"] = ([count, width], [0.0] * (count * width))
    logits = [float(count - i) for i in range(count)]
    tensors["head.bias"] = ([count], logits)
    save_tensors(to / "model.safetensors", tensors)
    total = sum(map(math.exp, logits))
    return [math.exp(x) / total for x in logits]


class TestClasses(ClassesTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.image = cls.shared / "image.png"
        cls.image.write_bytes(png(painted(COLOURS["Red fox"])))

    def classify(self, model, *arguments):
        words = ["classify", model, "--json", *arguments]
        return json.loads(self.succeed(*words).stdout)

    def probabilities(self, model, files, *arguments):
        """The probabilities of all classes, in order, for each file."""
        out = []
        for said in self.classify(model, *files, "--top", 99, *arguments):
            top = sorted(said["top"], key=lambda each: each["class"])
            self.assertEqual(list(range(len(top))), [each["class"] for each in top])
            self.assertAlmostEqual(1, sum(each["probability"] for each in top), 4)
            out.append([each["probability"] for each in top])
        return out

    def same(self, one, other, digits=5):
        self.assertEqual(len(one), len(other))
        for a, b in zip(one, other):
            self.assertAlmostEqual(a, b, digits)

    def table(self, *lines):
        """A folder with labels.tsv and a red image r.png; b.png and g.png are in
        images/."""
        data = self.work / "table"
        (data / "images").mkdir(parents=True, exist_ok=True)
        for name, colour in COLOURS.items():
            letter = next(c for c in name.lower() if c in "rgb")
            to = data if letter == "r" else data / "images"
            (to / f"{letter}.png").write_bytes(png(painted(colour)))
        (data / "labels.tsv").write_text("\n".join(lines) + "\n")
        return data

    # ---- Accuracy ------------------------------------------------------------

    def test_accuracy_of_known_answers(self):
        """On ImageNet's layout, with a different number of images per class and a model
        whose answers are known."""
        data, fixed = self.work / "data", self.work / "fixed"
        count = dict(zip(NAMES, (1, 2, 5)))
        for name in NAMES:
            class_folder(data / "train" / name, COLOURS[name], 1)
            class_folder(data / "val" / name, COLOURS[name], count[name])
        said = constant_model(self.colours, fixed)
        result = self.evaluate(fixed, "--data", data)
        self.assertEqual([8, SIDE, SIDE], [
            result[key] for key in ("images", "height", "width")])  # fmt: skip
        self.assertEqual("test", result["split"])
        self.assertEqual((1 / 8, 1), (result["top1"], result["top5"]))
        nats = -sum(n * math.log(p) for n, p in zip(count.values(), said)) / 8
        self.assertAlmostEqual(nats, result["nats"], 5)
        # The trained model, with any batch and at other sizes.
        real = self.evaluate(self.colours, "--data", data)
        batch = self.evaluate(self.colours, "--data", data, "--batch", 3)
        self.assertEqual((1, 1), (real["top1"], batch["top1"]))
        self.assertAlmostEqual(real["nats"], batch["nats"], 5)
        large = self.evaluate(self.colours, "--data", data, "--size", 40,
                              "--crop", 0.5, "--images", 4)  # fmt: skip
        self.assertEqual([4, 40, 40, 0.5, 1], [
            large[key] for key in ("images", "height", "width", "crop", "top1")
        ])  # fmt: skip

    def test_accuracy_on_built_in_shapes(self):
        # The shapes are the same at any size.
        done = self.succeed("eval", self.shapes, "--size", 32, "--images", 60)
        self.assertRegex(done.stdout, r"top-1 \d+\.\d\d %, top-5 \d+\.\d\d %"
                                      r".* 60 images of 32x32")  # fmt: skip
        with self.subTest("unchanged data"):
            self.assertNotIn("changed", done.stderr)
        # N evenly spaced images: about the same number of each class.
        fixed = self.work / "fixed"
        constant_model(self.shapes, fixed)
        whole = self.evaluate(fixed)
        self.assertAlmostEqual(1 / 6, whole["top1"], 2)
        self.assertAlmostEqual(5 / 6, whole["top5"], 2)
        part = self.evaluate(fixed, "--images", 200)
        self.assertEqual(200, part["images"])
        self.assertLess(abs(part["top1"] - 1 / 6), 0.05)
        self.assertLess(abs(part["top5"] - 5 / 6), 0.05)

    def test_classes_are_known_by_name(self):
        data, fixed = self.work / "data", self.work / "fixed"
        for name in ("blue", "Red fox"):  # not all classes
            class_folder(data / name, COLOURS[name], 10)
        class_folder(data / ".hidden", (0, 0, 0), 1)
        (data / "notes.txt").write_text("no class")
        result = self.evaluate(self.colours, "--data", data)
        self.assertEqual((20, 1), (result["images"], result["top1"]))
        result = self.evaluate(self.colours, "--data", data, "--split", "test")
        self.assertEqual((2, 1), (result["images"], result["top1"]))
        other = class_folder(data / "teal", (0, 128, 128), 10)
        with self.subTest("the error says where"):
            self.fails(1, [data, "'teal'", "data.classes"], "eval", self.colours, "--data", data)
        other.rename(data / "n1")
        # Class names with a wnid match folders named by the wnid.
        constant_model(self.colours, fixed)
        config = json.loads((fixed / "config.json").read_text())
        config["data"]["classes"] = ["n0 ant", "n1 bee, Apis", "n2 cat"]
        (fixed / "config.json").write_text(json.dumps(config))
        (data / "blue").rename(data / "n0")
        (data / "Red fox").rename(data / "n2")
        result = self.evaluate(fixed, "--data", data)
        self.assertEqual((30, 1 / 3), (result["images"], result["top1"]))

    def test_tables_of_labels(self):
        words = ["eval", self.colours, "--json", "--data"]
        for lines in (
            ["file\tclass_index\tname", "r.png\t0\tRed fox", "b.png\t2\tblue",
             "g.png\t1\t10 green"],
            # Only two classes have images.
            ["file\tclass_index\tname", "r.png\t7\tRed fox", "b.png\t5\tblue"],
            # Without names, class_index refers to the classes of the model.
            ["class_index\tfile", "1\tr.png", "2\tb.png", "0\tg.png"],
        ):  # fmt: skip
            with self.subTest(lines[0]):
                result = json.loads(self.succeed(*words, self.table(*lines)).stdout)
                self.assertEqual(len(lines) - 1, result["images"])
                self.assertEqual(1, result["top1"])
        # The index of a named class is that of a model without names.
        named = ["file\tclass_index\tname", "r.png\t1\tRed fox", "g.png\t0\tgreen"]
        unnamed = copy(self.colours, self.work / "unnamed")
        config = json.loads((unnamed / "config.json").read_text())
        config["data"]["classes"] = ["class 0", "class 1", "class 2"]
        (unnamed / "config.json").write_text(json.dumps(config))
        done = self.succeed("eval", unnamed, "--json", "--data", self.table(*named))
        self.assertEqual(1, json.loads(done.stdout)["top1"])
        self.assertIn("no names", done.stderr)
        self.fails(1, [self.data, "3 classes", "--labels FILE"],
                   "eval", unnamed, "--data", self.data)  # fmt: skip
        data = self.table("file\tclass_index", "r.png\t1", "nope.png\t1")
        self.fails(1, [data / "labels.tsv", "line 3", "nope.png"], *words, data)

    # ---- Images --------------------------------------------------------------

    def test_classify(self):
        folder = self.work / "folder"
        class_folder(folder / "below", COLOURS["blue"], 2)
        green, odd = painted(COLOURS["10 green"]), folder / 'a "b" ü.png'
        odd.write_bytes(png(green))
        (folder / "notes.txt").write_text("no image")
        said = self.classify(self.colours, self.image, folder, "--top", 2)
        self.assertEqual(
            [self.image, odd, folder / "below/000.png", folder / "below/001.png"],
            [Path(each["file"]) for each in said],
        )
        for each, label in zip(said, ("Red fox", "10 green", "blue", "blue")):
            first, second = each["top"]
            self.assertEqual(label, first["label"])
            self.assertEqual(NAMES.index(label), first["class"])
            self.assertGreater(first["probability"], 0.6)
            self.assertGreater(first["probability"], second["probability"])
        text = self.succeed("classify", self.colours, self.image, "--batch", 1)
        text = text.stdout.splitlines()
        self.assertEqual(str(self.image), text[0])
        percent = f"{100 * said[0]['top'][0]['probability']:.2f} %"
        self.assertEqual([percent, "Red fox"], text[1].strip().split("  "))
        self.assertEqual(1 + len(NAMES), len(text))  # fewer than five classes

    def test_kinds_of_files(self):
        """Each image gives the same result as its conversion to plain RGB."""
        grey = [RANDOM.randbytes(SIDE) for _ in range(SIDE)]
        bits = [RANDOM.randbytes(SIDE // 8) for _ in range(SIDE)]
        palette = RANDOM.randbytes(3 * 256)
        colours, white = noise(SIDE, SIDE), flat((255, 255, 255))
        c = [palette[3 * i : 3 * i + 3] for i in range(256)]
        clear = [b"\xff" * 3 if i < 128 else c[i] for i in range(256)]

        def with_alpha(alpha):
            return [
                b"".join(row[i : i + 3] + alpha for i in range(0, len(row), 3))
                for row in colours
            ]

        def spread(rows, to):
            return [b"".join(map(to, row)) for row in rows]

        pairs = {
            "grey.png": (png(grey, kind=0), spread(grey, lambda x: bytes(3 * [x]))),
            "one bit.png": (
                png(bits, depth=1, kind=0),
                spread(bits, lambda x: b"".join(
                    (b"\0\0\0", b"\xff\xff\xff")[x >> i & 1] for i in range(7, -1, -1)
                )),
            ),
            "sixteen bits.png": (
                png(spread(colours, lambda x: bytes([x, x])), depth=16), colours
            ),
            "palette.png": (
                png(grey, kind=3, extra=[(b"PLTE", palette)]),
                spread(grey, lambda x: c[x]),
            ),
            "palette with alpha.png": (
                png(grey, kind=3, extra=[(b"PLTE", palette), (b"tRNS", bytes(128))]),
                spread(grey, lambda x: clear[x]),
            ),
            "opaque.png": (png(with_alpha(b"\xff"), kind=6), colours),
            "nothing.png": (png(with_alpha(b"\0"), kind=6), white),
            "grey and alpha.png": (
                png(spread(grey, lambda x: bytes([x, 0])), kind=4), white
            ),
            "rgb.jpg": (jpeg((200, 17, 96)), flat((200, 17, 96))),
            "grey.jpeg": (jpeg((77,)), flat((77, 77, 77))),
            # In Adobe's convention, 255 is no ink.
            "cmyk.JPG": (jpeg((200, 100, 50, 255)), flat((200, 100, 50))),
            "black.jpg": (jpeg((200, 100, 51, 0)), flat((0, 0, 0))),
            # The format is detected by content.
            "png.jpg": (png(colours), colours),
        }  # fmt: skip
        files = []
        for name, (content, rows) in pairs.items():
            for path, data in ((name, content), (f"plain {name}.png", png(rows))):
                files.append(self.work / path)
                files[-1].write_bytes(data)
        said = self.probabilities(self.colours, files, "--batch", 7)
        for name, one, other in zip(pairs, said[::2], said[1::2]):
            with self.subTest(name):
                self.same(one, other, 4)

    def test_resizing_and_cropping(self):
        """The shorter side is scaled to size / crop, and the centre is cropped."""
        wide, tall = noise(32, 48), noise(24, 16)
        centre = [row[3 * 16 : 3 * 32] for row in wide[8:24]]
        files = []
        for name, rows in (("wide", wide), ("centre", centre), ("tall", tall),
                           ("middle", tall[4:20]), ("point", [b"\x80\x20\x60"]),
                           ("flat", flat((128, 32, 96)))):  # fmt: skip
            files.append(self.work / f"{name}.png")
            files[-1].write_bytes(png(rows))
        whole = self.probabilities(self.colours, files, "--crop", 1)
        half = self.probabilities(self.colours, files[:1], "--crop", 0.5)
        self.same(half[0], whole[1])
        self.same(whole[2], whole[3])
        self.same(whole[4], whole[5])
        self.assertNotAlmostEqual(half[0][0], whole[0][0], 5)

    def test_sizes_and_mixers(self):
        full, attention = self.work / "full", self.work / "attention"
        self.train(full, "--steps", 1, *sets(model__mixer="aft-full", model__rank=4))
        self.train(attention, "--steps", 1, *sets(model__mixer="attention"))
        self.fails(1, ["aft-full", "16x16", "24x24"],
                   "classify", full, self.image, "--size", 24)  # fmt: skip
        # Positions are interpolated.
        (said,) = self.probabilities(attention, [self.image], "--size", 24)
        self.assertEqual(6, len(said))
        # Not a multiple of the patch size.
        for command in (["classify", self.colours, self.image],
                        ["eval", self.colours]):  # fmt: skip
            self.fails(2, ["--size", "4", "18"], *command, "--size", 18)

    # ---- Speed ---------------------------------------------------------------

    def test_bench_of_trained_models(self):
        """A directory is measured with its own weights, which must be valid."""
        words = ["classify", "--quick", "--repeat", 1, "--threads", 1]
        two = self.work / "two"
        self.train(two, "--steps", 1, *sets(model__layers=2))
        rows = json.loads(self.succeed(*words, "--json", two, self.shapes,
                                       program=BENCH).stdout)  # fmt: skip
        self.assertEqual([str(two), str(self.shapes)], [row["preset"] for row in rows])
        tensors, _ = load_tensors(two / "model.safetensors")
        for row in rows:
            self.assertGreater(row["images_per_second"], 0)
            self.assertGreater(row["peak_gb"], 0.01)
        # --quick does not remove layers of trained models.
        count = sum(len(numbers) for _, numbers in tensors.values())
        self.assertEqual(count, rows[0]["parameters"])
        weights = (self.shapes / "model.safetensors").read_bytes()
        torn = copy(self.shapes, self.work / "torn", "model.safetensors",
                    weights[:3000])  # fmt: skip
        self.fails(1, [torn / "model.safetensors", "truncated"], *words, torn,
                   program=BENCH)  # fmt: skip
        (torn / "model.safetensors").unlink()
        self.fails(1, [torn / "model.safetensors"], *words, torn, program=BENCH)

    # ---- Errors --------------------------------------------------------------

    def test_bad_images(self):
        words = ["classify", self.colours]
        text, pipe = self.work / "x.png", self.work / "pipe"
        text.write_text("Dear diary")
        os.mkfifo(pipe)
        bad = {
            self.work / "nope.png": ["No such file"],
            text: ["PNG or JPEG", "Dear dia"],
            pipe: ["regular file"],
        }
        # The others are classified, in any batch.
        for batch in (1, 2, 16):
            done = aft(*words, self.image, *bad, self.image, "--batch", batch)
            self.assertEqual(1, done.returncode)
            said = done.stdout.splitlines()
            half = 1 + len(NAMES)
            self.assertEqual(2 * half, len(said))
            self.assertEqual(str(self.image), said[0])
            self.assertEqual(said[:half], said[half:])
            *each, last = done.stderr.splitlines()[-4:]
            self.assertEqual("aft: 3 of 5 images could not be classified", last)
            for line, (path, expected) in zip(each, bad.items()):
                for word in ("aft: ", str(path), *expected):
                    self.assertIn(word, line)
        done = aft(*words, text, self.image, "--json")
        self.assertEqual(1, done.returncode)
        first, second = json.loads(done.stdout)
        self.assertEqual({"file", "error"}, set(first))
        self.assertIn("Dear dia", first["error"])
        self.assertEqual({"file", "top"}, set(second))
        # All of them.
        self.fails(1, ["3 of 3 images"], *words, *bad)
        done = aft(*words, *bad, "--json")
        self.assertEqual([str(path) for path in bad],
                         [each["file"] for each in json.loads(done.stdout)])  # fmt: skip
        empty = self.work / "empty"
        empty.mkdir()
        self.fails(1, [empty, "PNG or JPEG", "none"], *words, empty)

    def test_bad_models(self):
        config = json.loads((self.colours / "config.json").read_text())
        weights = (self.colours / "model.safetensors").read_bytes()
        config["data"]["classes"].append("a fourth")
        mismatch = json.dumps(config).encode()
        config["data"]["classes"].pop()
        config["model"]["mixer"] = "conv"
        mixer = json.dumps(config).encode()
        other = (self.shapes / "model.safetensors").read_bytes()
        for i, (name, content, words) in enumerate((
            ("config.json", b'{"task": ', ["JSON"]),
            ("config.json", mismatch, ["model.classes", "4", "got 3"]),
            ("config.json", mixer, ["model.mixer", "'conv'"]),
            ("model.safetensors", weights[:3000], ["truncated"]),
            ("model.safetensors", other, ["head.weight", "[3, 16]", "[6, 16]"]),
        )):  # fmt: skip
            model = copy(self.colours, self.work / str(i), name, content)
            self.fails(1, [model / name, *words], "classify", model, self.image)

    def test_stopped_runs_can_be_used(self):
        out, file = self.work / "run", self.work / "new/folder/w.safetensors"
        self.stop(signal.SIGKILL, out, *self.training(out))
        self.assertFalse((out / "model.safetensors").exists())
        for words in (["classify", out, self.image], ["export", out, "--out", file]):
            done = self.succeed(*words)
            self.assertRegex(done.stderr, r"weights of step \d+, not validated yet")
        self.assertTrue(file.exists())

    def test_wrong_tasks(self):
        text = self.work / "text"
        self.train_on_text(text)
        self.fails(1, [text, "classification", "language", "aft generate"],
                   "classify", text, self.image)  # fmt: skip
        self.fails(1, [self.colours, "language", "classification", "aft classify"],
                   "generate", self.colours)  # fmt: skip
        self.fails(2, ["--size", "language"], "eval", text, "--size", 16)
        self.fails(2, ["--bytes", "--images"], "eval", self.colours, "--bytes", 5)

    def test_wrong_options(self):
        words = ["classify", self.colours, self.image]
        for option, value in (("--top", 0), ("--crop", "nan")):
            self.fails(2, [option, value], *words, option, value)
        words = ["eval", self.colours]
        self.fails(2, ["--crop", "'0'"], *words, "--crop", 0)
        self.fails(2, ["train, valid, test, all", "'dev'"], *words, "--split", "dev")


if __name__ == "__main__":
    main()
