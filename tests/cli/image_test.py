"""The image commands: training on images in every format, sampling, completion,
evaluation, data. Argument: the program."""

import json
import math
import os
import shutil
import signal
import tempfile
from pathlib import Path

from images import RECORD, cifar, folder, jpeg, noise, png, read_png
from program import ProgramTest, aft, lines_of, main, metrics, on_terminal, sets

PRESET = "image-aft-local-4x128"
HEIGHT, WIDTH = 4, 6  # of the images of SMALL
SMALL = sets(
    model__layers=1, model__width=16, model__window=8, model__rank=4,
    data__height=HEIGHT, data__width=WIDTH, data__valid_images=10,
    train__batch_size=2, train__validate_every=10, train__save_every=3,
    train__report_every=5,
    train__steps=30,
)  # fmt: skip
LONGER = SMALL + sets(train__steps=500, train__save_every=10, train__validate_every=100)
# Enough to memorise one image.
MEMORISING = sets(
    data__flip="false", data__shift=0, train__learning_rate=0.03, train__warmup_steps=5,
    train__weight_decay=0, train__validate_every=150, train__steps=150,
)  # fmt: skip
WHITE, GREY = b"\xff" * 3, b"\x80" * 3


def random_image(height=HEIGHT, width=WIDTH):
    return noise(height, width)


def draw_grid(images, columns, scale):
    """The expected image grid: rows of `columns` images, pixels of scale x scale,
    half a pixel of white around each image."""
    gap = max(scale // 2, 1)
    height, width = len(images[0]), len(images[0][0]) // 3
    line = gap * WHITE + columns * (width * scale + gap) * WHITE
    out = [line] * gap
    for first in range(0, len(images), columns):
        for y in range(height):
            row = gap * WHITE
            for p in images[first : first + columns]:
                pixels = (p[y][3 * x : 3 * x + 3] for x in range(width))
                row += b"".join(scale * pixel for pixel in pixels) + gap * WHITE
            out += [row.ljust(len(line), b"\xff")] * scale
        out += [line] * gap
    return out


class TestImages(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        # A model of the built-in images, and one trained on a single image.
        cls.model, cls.expert = cls.shared / "model", cls.shared / "expert"
        cls.known = random_image()
        folder(cls.shared / "same", [cls.known] * 12)
        cls.trained = aft("train", PRESET, "--out", cls.model, *SMALL)
        learned = aft("train", PRESET, "--data", cls.shared / "same",
                      "--out", cls.expert, *SMALL, *MEMORISING)  # fmt: skip
        for done in (cls.trained, learned):
            if done.returncode != 0:
                raise RuntimeError(done.stderr)

    def setUp(self):
        super().setUp()
        self.grid = self.work / "grid.png"

    def read_grid(self, count, columns, scale=4, height=HEIGHT, width=WIDTH):
        """The images of the grid self.grid, which contains nothing else."""
        rows, gap = read_png(self.grid), max(scale // 2, 1)
        self.assertEqual(len(rows), -(-count // columns) * (height * scale + gap) + gap)
        self.assertEqual(len(rows[0]), 3 * (columns * (width * scale + gap) + gap))
        out = []
        for i in range(count):
            top = gap + i // columns * (height * scale + gap)
            left = gap + i % columns * (width * scale + gap)
            at = [3 * (left + x * scale) for x in range(width)]
            out.append([b"".join(rows[top + y * scale][x : x + 3] for x in at)
                        for y in range(height)])  # fmt: skip
        good = rows == draw_grid(out, columns, scale)  # too large for a diff
        self.assertTrue(good, "not squares of one colour on white")
        return out

    def sample(self, *arguments):
        self.succeed("sample", *arguments, "--out", self.grid)
        return self.grid.read_bytes()

    def complete(self, data, keep, count, times, *arguments):
        """Completes; returns the masked images and the rows of completions."""
        self.succeed("complete", self.model, "--data", data, "--out", self.grid,
                     "--keep", keep, "--count", count, "--times", times,
                     *arguments)  # fmt: skip
        all_ = self.read_grid(count * (1 + times), count)
        return [all_[i : i + count] for i in range(0, len(all_), count)]

    # ---- Training ------------------------------------------------------------

    def test_killed_and_resumed_is_bit_identical(self):
        whole, torn = self.work / "whole", self.work / "torn"
        words = LONGER
        self.succeed("train", PRESET, "--out", whole, *words)
        self.disturb(
            torn, ["train", PRESET, "--out", torn, *words], [signal.SIGKILL] * 2
        )
        self.same_runs(whole, torn)

    def test_interrupted_and_resumed_is_bit_identical(self):
        data = self.work / "data"
        folder(data, [random_image() for _ in range(30)])
        whole, torn = self.work / "whole", self.work / "torn"
        words = [*LONGER, "--data", data]
        self.succeed("train", PRESET, "--out", whole, *words)
        told = self.disturb(
            torn, ["train", PRESET, "--out", torn, *words], [signal.SIGINT]
        )
        for stopped in told[:-1]:
            self.assertIn(f"aft train --resume {torn}", stopped)
        self.assertIn(f"aft sample {torn}", told[-1])
        self.same_runs(whole, torn)

    def test_stopped_runs_can_be_used(self):
        """Before the first validation of training: stopped and killed."""
        for number, expected in (
            (signal.SIGINT, r"weights of step \d+, the best by validation"),
            (signal.SIGKILL, r"weights of step \d+, not validated yet"),
        ):
            out, file = self.work / number.name, self.work / "w.safetensors"
            self.stop(number, out, "train", PRESET, "--out", out, *SMALL)
            for words in (
                ["sample", out, "--count", 1, "--out", self.grid],
                ["complete", out, "--count", 1, "--out", self.grid],
                ["export", out, "--out", file],
            ):
                self.assertRegex(self.succeed(*words).stderr, expected)
            for name in ("model.safetensors", "state/checkpoint.safetensors"):
                self.fails(2, ["--out", "of a run directory"],
                           "export", out, "--out", out / name)  # fmt: skip

    def test_output_and_files_of_training(self):
        self.assertIn(f"`aft sample {self.model}`", self.trained.stdout)
        self.assertIn(f"`aft complete {self.model}`", self.trained.stdout)
        self.assertNotIn("\r", self.trained.stderr)
        self.assertNotIn("\033", self.trained.stderr)
        lines = metrics(self.model)
        bits = lines[-1]["loss"] / math.log(2)
        (line,) = lines_of(self.trained.stderr, "step 30/30 ")
        self.assertIn(f"  bits/dim {bits:.4f}  ", line)
        best = min(m["validation"] for m in lines if "validation" in m)
        self.assertRegex(line, r"validation bits/dim \d")
        self.assertIn(f"(best {best / math.log(2):.4f})", line)
        self.assertNotIn("bpc", self.trained.stderr)
        config = json.loads((self.model / "config.json").read_text())
        self.assertEqual("image", config["task"])
        self.assertEqual(3 * HEIGHT * WIDTH, config["model"]["length"])
        self.assertTrue((self.model / "curve.svg").read_text().startswith("<svg"))
        # The saved model is the validated one.
        words = ["eval", self.model, "--split", "valid"]
        valid = json.loads(self.succeed(*words, "--json").stdout)
        self.assertEqual(10, valid["images"])
        self.assertAlmostEqual(best, valid["nats"], 5)
        self.assertAlmostEqual(best / math.log(2), valid["bits_per_dim"], 4)

    def test_memorises_an_image(self):
        result = json.loads(self.succeed("eval", self.expert, "--json").stdout)
        size = [result[key] for key in ("images", "height", "width")]
        self.assertEqual([1, HEIGHT, WIDTH], size)
        self.assertLess(result["bits_per_dim"], 0.1)
        self.sample(self.expert, "--temperature", 0, "--count", 2)
        self.assertEqual([self.known] * 2, self.read_grid(2, 2))
        # It has never seen the others.
        folder(self.work / "other", [random_image() for _ in range(20)])
        said = self.succeed(
            "eval", self.expert, "--data", self.work / "other", "--images", 1
        ).stdout
        self.assertRegex(said, r"bits/dim \d+\.\d{4} on all, 1 image of 4x6")
        self.assertGreater(float(said.split("bits/dim ")[1].split()[0]), 8)

    def test_a_run_keeps_its_data_and_size(self):
        data, out = self.work / "data", self.work / "run"
        images = [random_image() for _ in range(20)]
        folder(data, images)
        self.succeed("train", PRESET, "--data", data, "--out", out, *SMALL)
        more = ["train", "--resume", out, "--steps", 40]
        for height, words in (
            (6, sets(data__height=6, data__width=4)), (8, sets(data__height=8))
        ):  # fmt: skip
            self.fails(1, ["data.height", f"cannot be changed to {height}"], *more, *words)
        for changed in (random_image(1) + images[3][1:], random_image()):
            (data / "003.png").write_bytes(png(changed))
            with self.subTest("one row" if changed[1] == images[3][1] else "all"):
                self.fails(1, [data, "data.fingerprint"], *more)
        self.assertIn("changed", self.succeed("eval", out).stderr)
        shutil.rmtree(data)
        self.fails(1, [data, "got nothing"], *more)

    # ---- Image grids ---------------------------------------------------------

    def test_samples(self):
        first = self.sample(self.model)
        many = self.read_grid(16, 4)
        self.assertEqual(16, len({tuple(p) for p in many}))
        self.assertEqual(first, self.sample(self.model, "--seed", 1))
        self.assertNotEqual(first, self.sample(self.model, "--seed", 2))
        others = self.read_grid(16, 4)
        self.assertFalse([p for p in others if p in many])
        # An image does not depend on the others in its batch.
        for batch, count, columns, scale in ((2, 5, 2, 3), (1, 3, 9, 1)):
            self.sample(self.model, "--batch", batch, "--count", count,
                        "--columns", columns, "--scale", scale)  # fmt: skip
            columns = min(columns, count)
            self.assertEqual(many[:count], self.read_grid(count, columns, scale))

    def test_completions(self):
        data = self.work / "data"
        train, test = ([random_image() for _ in range(n)] for n in (3, 5))
        folder(data / "train", train)
        folder(data / "test", test)
        grey = WIDTH * GREY

        def check(images, kept, masked, *completed):
            for i, p in enumerate(images):
                self.assertEqual(p[:kept] + (HEIGHT - kept) * [grey], masked[i])
                for row in completed:
                    self.assertEqual(p[:kept], row[i][:kept])
                    self.assertNotEqual(p[kept:], row[i][kept:])

        top, one, two = self.complete(data, 0.5, 3, 2, "--first", 2, "--batch", 4)
        check(test[2:], 2, top, one, two)
        for a, b in zip(one, two):
            self.assertNotEqual(a, b)
        # Whole rows are kept; their number is rounded.
        check(test, 0, *self.complete(data, 0, 5, 1))
        check(train, 3, *self.complete(data, 0.7, 3, 1, "--split", "train"))
        self.assertEqual([test[:4]] * 3, self.complete(data, 1, 4, 2))
        # Greedy, in batches of different sizes: 0 1 2, 3 4 0, 1 2 3, 4.
        top, one, two = self.complete(data, 0.5, 5, 2, "--temperature", 0, "--batch", 3)
        check(test, 2, top, one)
        self.assertEqual(one, two)
        # The memorised image is completed from its first rows.
        self.succeed("complete", self.expert, "--out", self.grid, "--count", 1,
                     "--keep", 0.25, "--times", 1)  # fmt: skip
        self.assertEqual(self.known, self.read_grid(2, 1)[1])
        words = ["complete", self.model, "--data", data, "--out", self.work / "x.png"]
        self.fails(1, [data, "'test' has 5", "--first", "--count"],
                   *words, "--count", 2, "--first", 4)  # fmt: skip
        self.assertFalse((self.work / "x.png").exists())

    def test_completes_files(self):
        data = self.work / "data"
        images = [random_image() for _ in range(3)]
        folder(data, images)
        file = self.work / "wide.png"  # cropped to the model's size
        wide = [3 * row for row in images[1]]
        file.write_bytes(png(wide))
        words = ["complete", self.model, "--out", self.grid, "--times", 2]
        said = self.succeed(*words, data / "000.png", file, data, "--keep", 0.75)
        self.assertIn("5 images with 3 of 4 rows", said.stdout)
        shown = self.read_grid(15, 5)
        self.assertEqual(images[0][:3] + [WIDTH * GREY], shown[0])
        self.assertEqual(images[1][:3] + [WIDTH * GREY], shown[1])
        for i in range(3):
            self.assertEqual(images[i][:3] + [WIDTH * GREY], shown[2 + i])
            for row in (5, 10):
                self.assertEqual(images[i][:3], shown[row + 2 + i][:3])
                self.assertNotEqual(images[i][3], shown[row + 2 + i][3])
        # As the same image of a data set.
        folder(self.work / "set" / "train", images[:1])
        folder(self.work / "set" / "test", images[:1])
        top, one = self.complete(self.work / "set", 0.5, 1, 1)
        self.succeed(*words[:4], data / "000.png", "--times", 1)
        self.assertEqual([*top, *one], self.read_grid(2, 1))
        before = self.grid.read_bytes()
        (data / "x.png").write_bytes(b"Dear diary")
        for bad, expected in (
            (data, [data / "x.png", "PNG or JPEG", "Dear dia"]),
            (self.work / "nope.png", ["nope.png", "No such file"]),
        ):
            self.fails(1, expected, *words, data / "000.png", bad)
        (self.work / "empty").mkdir()
        self.fails(1, ["empty", "PNG or JPEG", "none"], *words, self.work / "empty")
        for option, value in (("--data", data), ("--split", "test"),
                              ("--count", 1), ("--first", 1)):  # fmt: skip
            self.fails(2, [option], *words, file, option, value)
        self.assertEqual(before, self.grid.read_bytes())

    def test_progress_on_a_terminal(self):
        seen = on_terminal(80, "sample", self.model, "--out", self.grid, TERM="xterm")
        self.assertIn(f"/{16 * 3 * HEIGHT * WIDTH} sub-pixels", seen)
        self.assertIn("\r", seen)
        self.assertTrue(seen.endswith("\r\033[K"), seen)  # the line is cleared

    # ---- Data ----------------------------------------------------------------

    def test_cifar(self):
        data, out = self.work / "cifar", self.work / "run"
        train = cifar(data / "data_batch_2.bin")
        cifar(data / "data_batch_5.bin")
        test = cifar(data / "test_batch.bin")
        described = json.loads(
            self.succeed("data", data, "--json", "--sheet", self.grid).stdout
        )
        self.assertEqual(32, described["size"])
        self.assertEqual(20000, described["splits"]["train"]["images"])
        self.assertEqual(10000, described["splits"]["test"]["images"])
        self.assertEqual(train[:2], self.read_grid(64, 8, 4, 32, 32)[:2])
        size = sets(data__height=32, data__width=32, data__valid_images=2)
        self.succeed("train", PRESET, "--data", data, "--out", out, *SMALL, *size,
                     "--steps", 1)  # fmt: skip
        self.succeed("complete", out, "--out", self.grid, "--count", 2, "--times", 1,
                     "--first", 9998, "--scale", 1)  # fmt: skip
        shown = self.read_grid(4, 2, 1, 32, 32)
        self.assertEqual([p[:16] + 16 * [32 * GREY] for p in test[2:]], shown[:2])
        self.assertEqual([p[:16] for p in test[2:]], [p[:16] for p in shown[2:]])
        words = ["eval", out, "--images", 3, "--split", "train"]
        answer = json.loads(self.succeed(*words, "--json").stdout)
        self.assertEqual(3, answer["images"])
        self.assertLess(abs(answer["bits_per_dim"] - 8), 0.1)

    def test_bad_cifar(self):
        data = self.work / "cifar"
        cifar(data / "data_batch_1.bin")
        good = (data / "data_batch_1.bin").read_bytes()
        wrong = bytearray(good)
        wrong[777 * RECORD] = 10
        for name, content, words in (
            ("data_batch_3.bin", good[:-1], ["30730000", "30729999"]),
            ("data_batch_3.bin", wrong, ["record 777", "label", "got 10"]),
            ("test_batch.bin", good[:-RECORD], ["30730000", "30726927"]),
        ):
            (data / name).write_bytes(content)
            self.fails(1, [data / name, *words], "data", data)
            (data / name).unlink()
        bad = self.work / "bad"
        self.fails(1, [data, "'test'"], "eval", self.model, "--data", data)
        (data / "data_batch_1.bin").rename(data / "test_batch.bin")
        self.fails(1, [data, "got 0 and 0"],
                   "train", PRESET, "--data", data, "--out", bad, *SMALL)  # fmt: skip
        self.assertFalse(bad.exists())

    def test_folders(self):
        data = self.work / "data"
        kept, wide = [random_image(5, 5) for _ in range(13)], random_image(5, 10)
        folder(data, kept[:2])
        (data / "002.PNG").write_bytes(png(wide))  # cropped to the centre
        (data / "003.JPEG").write_bytes(jpeg((200, 17, 96)))
        (data / "004.jpg").write_bytes(png(kept[2]))  # the format is detected by content
        (data / "notes.txt").write_text("no image")
        folder(data / "below" / "deep", kept[3:])  # before 'notes', after digits
        flat = [5 * bytes((200, 17, 96))] * 5
        files = [*kept[:2], [row[6:21] for row in wide], flat, kept[2], *kept[3:]]
        words = ["data", data, "--size", 5, "--sheet", self.grid]
        described = json.loads(self.succeed(*words, "--json").stdout)
        self.assertEqual([5, 14, 1], [
            described["size"], *(described["splits"][s]["images"]
                                 for s in ("train", "test"))])  # fmt: skip
        # Every tenth is a test image; the grid shows the others first.
        self.assertEqual(files[:9] + files[10:] + files[9:10],
                         self.read_grid(15, 8, 4, 5, 5))  # fmt: skip
        # Folders named after splits.
        data = self.work / "parts"
        folder(data / "train", kept[:3])
        folder(data / "val", kept[3:5])
        listed = self.succeed("data", data, "--size", 5, "--sheet", self.grid).stdout
        self.assertRegex(listed, r"5x5(?s:.)*train +3 (?s:.)*test +2 ")
        self.assertEqual(kept[:5], self.read_grid(5, 5, 4, 5, 5))

    def test_bad_folders(self):
        data, bad = self.work / "data", self.work / "bad"
        folder(data, [random_image() for _ in range(5)])
        good = png(random_image())
        broken = bytearray(good)
        broken[len(good) // 2] ^= 4
        words = ["train", PRESET, "--out", bad, *SMALL, "--data"]
        for name, content, expected in (
            ("x.png", b"Dear diary", ["PNG or JPEG", "Dear dia"]),
            ("x.jpg", b"", ["PNG or JPEG", "empty"]),
            ("broken.png", broken, ["valid PNG"]),
            ("cut.jpeg", jpeg((1, 2, 3))[:-4], ["valid JPEG"]),
        ):
            (data / name).write_bytes(content)
            self.fails(1, [data / name, *expected], *words, data)
            (data / name).unlink()
        self.fails(1, [data, "got 5 and 0"], *words, data)
        self.fails(1, [data / "000.png", "folder", "one image"], *words, data / "000.png")
        note = self.work / "note.txt"
        note.write_text("Dear diary")
        self.fails(1, [note, "--data", "data.path", "text presets"], *words, note)
        self.fails(1, ["/nowhere/images", "folder", "nothing"],
                   *words, "/nowhere/images")  # fmt: skip
        empty = self.work / "empty"
        empty.mkdir()
        self.fails(1, [empty, "PNG or JPEG", "none"], *words, empty)
        self.assertFalse(bad.exists())
        # An unreadable image is not skipped.
        (data / "x.png").symlink_to("/nowhere/x.png")
        with self.subTest("a dangling link"):
            self.fails(1, [data / "x.png"], "data", data)

    def test_built_in_and_known_data(self):
        words = ["data", "built-in-images", "--size"]
        described = json.loads(
            self.succeed(*words, 8, "--json", "--sheet", self.grid).stdout
        )
        self.assertEqual([8, 2000, 200], [
            described["size"], *(described["splits"][s]["images"]
                                 for s in ("train", "test"))])  # fmt: skip
        self.assertEqual(64, len({tuple(p) for p in self.read_grid(64, 8, 4, 8, 8)}))
        self.fails(1, ["/proc/x.png"], *words, 1, "--sheet", "/proc/x.png")
        name = "cifar-10-batches-bin"
        self.assertIn(name, self.succeed("data").stdout)
        hint = f"aft data {name} --download"
        self.fails(1, [hint], "data", name, cwd=self.work)
        self.fails(1, [hint], "train", "cifar10-aft-local-24x256", cwd=self.work)
        archive = self.work / "archive"
        archive.write_bytes(b"x" * 100)
        here = self.work / "here"
        here.mkdir()
        self.fails(1, ["expected 170052171 bytes, got 100"], "data", name,
                   "--download", "--out", here, "--from", archive.as_uri())  # fmt: skip
        self.assertEqual([], os.listdir(here))

    # ---- Presets and errors --------------------------------------------------

    def test_info_and_presets(self):
        for name, words, mixer in (
            # q, k and v: 3 (d^2 + d); biases: 2 T rank, dense T^2. The paper has
            # 0.6 and 9.6 million.
            ("cifar10-aft-local-24x256", [], 590592),
            ("cifar10-aft-local-24x256-dense", sets(model__layers=1), 9634560),
        ):
            info = json.loads(self.succeed("info", name, "--json", *words).stdout)
            self.assertEqual(mixer, info["parameters_per_mixer"])
            self.assertEqual(3072, info["config"]["model"]["length"])
        listed = self.succeed("presets").stdout
        for name, figures in (
            ("cifar10-aft-local-24x256", "2.75 2.74"),
            ("cifar10-aft-simple-24x256", ""),
            ("cifar10-transformer-12x512", ""),
            ("cifar10-image-local1d-12x512", "- -"),
            (PRESET, ""), ("image-aft-full-4x128", ""),
            ("image-aft-simple-4x128", ""), ("image-aft-conv-4x128", ""),
            ("image-transformer-4x128", ""),
        ):  # fmt: skip
            (line,) = lines_of(listed, name + " ")
            self.assertTrue(" ".join(line.split()).endswith(figures), line)
        self.assertIn("Task image, the paper's models; figures in bits/dim", listed)

    def test_wrong_calls(self):
        text = self.work / "text"
        self.train_on_text(text)
        self.fails(1, [self.model, "language", "image", "aft sample"],
                   "generate", self.model)  # fmt: skip
        self.fails(1, [text, "image", "language", "aft generate"], "sample", text)
        self.fails(2, ["--images", "--bytes"], "eval", text, "--images", 5)
        for option in ("--bytes", "--stride"):
            self.fails(2, [option, "--images"], "eval", self.model, option, 5)
        folder_ = self.work / "d.png"
        folder_.mkdir()
        for command, out, why in (
            ("sample", "/proc/no/x.png", "cannot be created"),
            ("sample", folder_, "cannot be written"),
            ("complete", "/proc/x.png", "cannot be written"),
        ):
            self.fails(1, [out if why.endswith("written") else "/proc/no", why],
                       command, self.model, "--count", 1, "--out", out)  # fmt: skip
        for name in ("x.jpg", "png", "x.png/"):
            for command in ("sample", "complete"):
                self.fails(2, ["--out", "must end in .png", f"'{name}'"],
                           command, self.model, "--out", name)  # fmt: skip
            self.fails(2, ["--sheet", "must end in .png", f"'{name}'"],
                       "data", "built-in-images", "--sheet", name)  # fmt: skip
        self.assertEqual(["d.png", "text"], sorted(os.listdir(self.work)))
        self.grid = self.work / "new/folders/grid.PNG"
        self.sample(self.model, "--count", 1)
        # Too large for one image: 2 x 289 images of 64 times 4 x 6 pixels.
        self.fails(1, ["67108864 pixels"], "sample", self.model,
                   "--count", 290, "--columns", 289, "--scale", 64,
                   "--out", self.grid)  # fmt: skip
        for option in ("--keep=nan", "--temperature=nan", "--top-p=nan"):
            with self.subTest(option):
                self.fails(2, [option.split("=")[0]], "complete", self.model, option,
                           "--out", self.grid)  # fmt: skip
        for key, word in (
            ("model.length=100", "= 72"),
            ("data.valid_images=0", "data.valid_images"),
        ):
            self.fails(1, [word], "train", PRESET, "--out", self.work / "bad",
                       *SMALL, "--set", key)  # fmt: skip
        self.assertFalse((self.work / "bad").exists())


if __name__ == "__main__":
    main()
