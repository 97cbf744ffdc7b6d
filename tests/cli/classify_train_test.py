"""Training of classifiers: the built-in shapes and user data, resuming, initial
weights, errors. Argument: the program."""

import json
import math
import os
import shutil
import signal

from classes import COLOURS, NAMES, ClassesTest, class_folder
from images import jpeg, noise, png
from program import aft, lines_of, main, metrics, sets
from tensors import load_tensors

os.environ["OMP_NUM_THREADS"] = "1"
SHAPES = ["disc", "square", "triangle", "ring", "cross", "stripes"]
# All random augmentation and regularisation, and averaged weights.
RANDOMISED = sets(
    model__layers=2, model__drop_path=0.3, model__dropout=0.1, data__mixup=0.8,
    data__cutmix=1, data__rand_ops=2, data__erase=0.5, data__repeats=2,
    data__crop_area=0.08, train__ema=0.9, train__grad_accumulation=2, train__steps=200,
    train__save_every=10, train__validate_every=50,
)  # fmt: skip


class TestTraining(ClassesTest):
    def train_fails(self, words, *arguments):
        """The call fails and leaves nothing behind that prevents a corrected one."""
        bad = self.work / "bad"
        self.fails(1, words, *self.training(bad, *arguments))
        with self.subTest("nothing is left", of=arguments[-1]):
            self.assertFalse(bad.exists())
        shutil.rmtree(bad, ignore_errors=True)

    # ---- Runs ----------------------------------------------------------------

    def test_stopped_and_resumed_is_bit_identical(self):
        whole, torn = self.work / "whole", self.work / "torn"
        # The number of loader threads has no effect either.
        self.train(whole, *RANDOMISED, *sets(data__workers=3))
        told = self.disturb(
            torn,
            self.training(torn, *RANDOMISED, *sets(data__workers=1)),
            [signal.SIGKILL, signal.SIGINT],
        )
        if len(told) == 3:  # stopped by SIGINT
            self.assertIn("saved at step", told[1])
            self.assertIn(f"aft train --resume {torn}", told[1])
        self.same_runs(whole, torn)
        ends = [
            {m["step"]: (m["validation"], m["top1"]) for m in metrics(run)
             if "validation" in m}
            for run in (whole, torn)
        ]  # fmt: skip
        self.assertEqual(*ends)
        self.assertEqual([50, 100, 150, 200], sorted(ends[0]))

    def test_output_and_files_of_training(self):
        self.assertIn(f"`aft classify {self.colours} ", self.trained.stdout)
        self.assertNotIn("\r", self.trained.stderr)
        self.assertNotIn("\033", self.trained.stderr)
        config = json.loads((self.colours / "config.json").read_text())
        self.assertEqual("classification", config["task"])
        self.assertEqual(NAMES, config["data"]["classes"])
        shape = [config["model"][key] for key in ("rows", "columns", "classes")]
        self.assertEqual([self.SIDE // self.PATCH, self.SIDE // self.PATCH, 3], shape)
        lines = metrics(self.colours)
        self.assertEqual(list(range(5, 41, 5)), [m["step"] for m in lines])
        self.assertLess(lines[-1]["loss"], 0.7 * lines[0]["loss"])
        checked = [m for m in lines if "validation" in m]
        self.assertEqual([10, 20, 30, 40], [m["step"] for m in checked])
        for m in checked:
            self.assertTrue(0 <= m["top1"] <= m["top5"] == 1, m)
        self.assertLess(checked[-1]["validation"], checked[0]["validation"])
        (line,) = lines_of(self.trained.stderr, "step 40/40 ")
        self.assertIn(f"loss {lines[-1]['loss']:.4f}", line)
        self.assertIn("top1 100.00 %", line)
        self.assertIn("images/s", line)
        # The unit is not bits.
        curve = (self.colours / "curve.svg").read_text()
        self.assertTrue(curve.startswith("<svg"))
        with self.subTest("the text of the curve"):
            self.assertNotIn("bits", curve)
            self.assertIn(">nats<", curve)
        # The saved model is the validated one.
        valid = self.evaluate(self.colours, "--split", "valid")
        best = min(m["validation"] for m in checked)
        self.assertAlmostEqual(best, valid["nats"], 5)
        # A tenth of 54, from all classes.
        self.assertEqual((5, 1), (valid["images"], valid["top1"]))

    def test_built_in_shapes(self):
        config = json.loads((self.shapes / "config.json").read_text())
        self.assertEqual(SHAPES, config["data"]["classes"])
        self.assertEqual([10, 20], [m["step"] for m in metrics(self.shapes)
                                    if "top1" in m and "top5" in m])  # fmt: skip

    def test_initial_weights_from_another_run(self):
        out = self.work / "run"
        done = self.train(out, "--init", self.shapes, "--data", self.data,
                          "--steps", 2)  # fmt: skip
        (line,) = lines_of(done.stdout + done.stderr, "newly initialised")
        self.assertEqual("2 tensors: head", line.split("newly initialised: ")[1])
        tensors, _ = load_tensors(out / "model.safetensors")
        self.assertEqual([3, 16], tensors["head.weight"][0])
        # With a tiny learning rate, the copied weights hardly change.
        again = self.work / "again"
        self.train(again, "--init", self.colours, "--data", self.data, "--steps", 1,
                   *sets(train__learning_rate=1e-9, data__height=32,
                         data__width=32))  # fmt: skip
        self.assertEqual(1, self.evaluate(again)["top1"])
        self.train_fails([self.colours, "model.width", "16", "32"],
                         "--init", self.colours, *sets(model__width=32))  # fmt: skip
        self.fails(2, ["--init"], "train", "--resume", self.colours,
                   "--init", self.shapes)  # fmt: skip

    def test_initial_weights_of_known_classes(self):
        """Classes that the other model knows by WordNet id keep their names and
        outputs."""
        known, data, out = (self.work / name for name in ("known", "data", "run"))
        known.mkdir()
        (known / "model.safetensors").write_bytes(
            (self.colours / "model.safetensors").read_bytes()
        )
        config = json.loads((self.colours / "config.json").read_text())
        named = [f"n{i} {name}" for i, name in enumerate(NAMES)]
        config["data"]["classes"] = named
        (known / "config.json").write_text(json.dumps(config))
        for name, colour in (("n1", COLOURS[NAMES[1]]), ("n7", (0, 0, 0)),
                             ("n0", COLOURS[NAMES[0]])):  # fmt: skip
            class_folder(data / name, colour, 20)
        rate = sets(train__learning_rate=1e-9)
        done = self.train(out, "--init", known, "--data", data, "--steps", 1, *rate)
        copied, fresh = (lines_of(done.stderr, word)[0]
                         for word in ("copied", "newly initialised"))  # fmt: skip
        self.assertTrue(copied.endswith(", head"), copied)
        self.assertEqual("2 tensors: head", fresh.split("newly initialised: ")[1])
        config = json.loads((out / "config.json").read_text())
        self.assertEqual([*named[:2], "n7"], config["data"]["classes"])
        old, new = (load_tensors(each / "model.safetensors")[0]["head.weight"][1]
                    for each in (known, out))  # fmt: skip
        for i in range(3 * 16):
            if i < 2 * 16:  # rows 0 and 1
                self.assertAlmostEqual(old[i], new[i], 6)
        self.assertNotAlmostEqual(old[-1], new[-1], 5)
        self.assertGreaterEqual(self.evaluate(out, "--data", data)["top1"], 2 / 3)
        (label, *_), = [[top["label"] for top in each["top"]] for each in json.loads(
            self.succeed("classify", out, data / "n1/000.png", "--json").stdout)]
        self.assertEqual("n1 Red fox", label)
        # A resumed run keeps the names.
        self.succeed("train", "--resume", out, "--steps", 2)
        self.succeed("train", "--resume", out, "--steps", 3, "--data", data)
        again = json.loads((out / "config.json").read_text())
        self.assertEqual(config["data"]["classes"], again["data"]["classes"])
        (data / "n7").rename(data / "n8")
        self.fails(1, [data, "the 3 classes that the run started with"],
                   "train", "--resume", out, "--steps", 4, "--data", data)  # fmt: skip

    def test_initial_weights_of_another_task(self):
        text = self.work / "text"
        self.train_on_text(text)
        self.train_fails([text, "classification", "language"], "--init", text)

    def test_a_run_keeps_its_classes(self):
        more = ["train", "--resume", self.shapes, "--steps", 30]
        self.fails(1, [self.data, "classes"], *more, "--data", self.data)
        self.fails(1, ["data.height", "16", "32"], *more, *sets(data__height=32))
        self.fails(2, [self.shapes, "--resume"], *self.training(self.shapes))

    def test_one_position_per_head(self):
        """Gumbel-softmax: descriptions and sparsity; it cannot be changed."""
        out = self.work / "run"
        done = self.train(out, "--steps", 4,
                          *sets(model__gumbel=0.5, train__save_every=4,
                                train__validate_every=2))  # fmt: skip
        self.assertIn("one position per head (gumbel 0.5)", done.stderr)
        said = self.evaluate(out)
        self.assertAlmostEqual(said["kernel_entropy_most"], math.log(9), 5)
        self.assertTrue(0 < said["kernel_entropy"] <= math.log(9) + 1e-6)
        self.assertTrue(1 / 9 - 1e-6 <= said["kernel_top"] <= 1)
        (line,) = lines_of(self.succeed("eval", out).stdout, "kernels: ")
        self.assertIn("one position per head", line)
        self.assertIn("softmax(w)", line)
        plain = self.succeed("eval", self.shapes).stdout
        self.assertNotIn("one position", plain)
        self.assertIn("kernels: entropy", plain)
        self.fails(1, ["model.gumbel", "0.5", "0.7"], "train", "--resume", out,
                   "--steps", 8, *sets(model__gumbel=0.7))  # fmt: skip
        again = self.succeed("train", "--resume", out, "--steps", 6)
        self.assertIn("done", again.stdout)

    # ---- Errors --------------------------------------------------------------

    def test_bad_data(self):
        data = self.work / "data"
        for name, colour in COLOURS.items():
            class_folder(data / name, colour, 10)
        empty = self.work / "empty"
        empty.mkdir()
        for path, words in (
            (self.work / "nowhere", ["folder", "nothing"]),
            (empty, ["PNG or JPEG", "none"]),
            (data / "blue", ["folder", "each class", "none"]),  # no classes
        ):
            self.train_fails([path, *words], "--data", path)
        (data / "empty").mkdir()
        self.train_fails([data / "empty", "none"], "--data", data)
        (data / "empty").rmdir()
        # config.json cannot hold a name that is not UTF-8.
        odd = bytes(data) + b"/bl\xfce"
        os.rename(data / "blue", odd)
        self.train_fails([data, "UTF-8", "class"], "--data", data)
        os.rename(odd, data / "blue")
        # Inconsistent parts.
        (data / "train").mkdir()
        for name in COLOURS:
            (data / name).rename(data / "train" / name)
        self.train_fails([data, "val/", "only train/"], "--data", data)
        class_folder(data / "val" / "teal", (0, 128, 128), 1)
        self.train_fails([data / "val/teal", "classes"], "--data", data)
        # Too few images for training and validation.
        few = self.work / "few"
        for name, colour in COLOURS.items():
            class_folder(few / name, colour, 1)
        self.train_fails([few, "validation", "got 3 and 0"], "--data", few)

    def test_one_class(self):
        """A single class is an error, or training writes all files."""
        out = self.work / "run"
        class_folder(self.work / "data" / "all", (9, 9, 9), 20)
        done = aft(*self.training(out, "--data", self.work / "data"))
        if done.returncode == 0:
            self.assertTrue((out / "curve.svg").exists(), done.stdout)
        else:
            self.assertEqual(1, done.returncode)
            self.assertIn(str(self.work / "data"), done.stderr)

    def test_broken_images_are_named(self):
        """Reading them fails; the run can be resumed once they are replaced."""
        data, good = self.work / "data", png(noise(self.SIDE, self.SIDE))
        for name, colour in COLOURS.items():
            class_folder(data / name, colour, 10)
        words = ["--data", data, *sets(train__batch_size=16)]
        for name, content, expected in (
            ("000.png", good[: len(good) // 2], ["valid PNG"]),
            ("001.jpg", jpeg((1, 2, 3))[:-4], ["valid JPEG"]),
            ("002.png", b"Dear diary", ["PNG or JPEG", "Dear dia"]),
            ("003.png", None, []),
        ):
            file, out = data / "blue" / name, self.work / name
            before = file.read_bytes() if file.exists() else None
            file.unlink(missing_ok=True)
            if content is None:
                file.symlink_to("/nowhere/x.png")
            else:
                file.write_bytes(content)
            self.fails(1, [file, *expected], *self.training(out, *words))
            file.unlink()
            if before is not None:
                file.write_bytes(before)
        again = self.succeed("train", "--resume", self.work / "000.png")
        self.assertIn("done", again.stdout)

    def test_wrong_keys(self):
        for setting, words in (
            ("data.workers=0", ["data.workers", "got 0"]),
            ("data.height=18", ["data.height", "model.patch = 4", "got 18"]),
            ("model.classes=3", ["model.classes", "6", "got 3"]),
            ("model.window=4", ["model.window", "odd", "got"]),
            ("model.drop_path=1", ["model.drop_path", "got 1"]),
            ("model.mixer=conv", ["model.mixer", "aft-conv", "'conv'"]),
        ):
            self.train_fails(words, "--set", setting)
        self.fails(2, ["data.mixpu", "data.mixup"], "train", self.PRESET, "--set", "data.mixpu=1")
        self.train_fails(["train.batch_size", "even", "got 3"],
                         *sets(train__batch_size=3, data__mixup=0.8))  # fmt: skip


if __name__ == "__main__":
    main()
