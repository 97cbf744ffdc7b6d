"""`aft train` and the commands for its models: interruption, resuming, usage
errors. Argument: the program."""

import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from program import AFT, BENCH, TIMEOUT, ProgramTest, aft, main, metrics, sets

SMALL = sets(
    model__layers=1, model__width=16, model__length=32, train__batch_size=2,
    train__validate_every=20, train__save_every=3, train__report_every=5,
    data__valid_bytes=2000,
    train__steps=60,
)  # fmt: skip
PRESET = "text-aft-local-4x128"
KEPT = "surrogateescape"  # keeps bytes that are not UTF-8


class TestTrain(ProgramTest):
    def generate(self, *arguments):
        # Generated text need not be UTF-8.
        return self.succeed("generate", *arguments, errors=KEPT)

    def interrupt(self, out, begun):
        """Interrupts an endless run once its file `begun` exists; returns stdout."""
        run = subprocess.Popen(
            [AFT, "train", PRESET, "--out", str(out), *SMALL,
             "--set", "train.steps=1000000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(run.kill)
        self.await_file(run, begun)
        run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 130, stderr)
        return stdout

    def test_interrupt_saves_and_prints_how_to_resume(self):
        out = self.work / "run"
        stdout = self.interrupt(out, out / "metrics.jsonl")
        self.assertIn(f"aft train --resume {out}", stdout)
        self.assertTrue((out / "state/checkpoint.safetensors").exists())

    def test_interrupt_saves_from_the_start(self):
        for i in range(4):
            out = self.work / f"run{i}"
            # The directory is created by the program or exists before it.
            if i % 2:
                out.mkdir()
            stdout = self.interrupt(out, out / "state" if i % 2 else out)
            step = self.saved_step(stdout)
            self.succeed("train", "--resume", out, "--steps", step + 1)

    def test_train_evaluate_and_generate(self):
        text = self.work / "text"
        text.write_text("All work and no play makes for a dull day.\n" * 400)
        out = self.work / "run"
        self.succeed("train", PRESET, "--data", text, "--out", out, *SMALL)
        self.assertTrue((out / "curve.svg").read_text().startswith("<svg"))
        result = json.loads(self.succeed("eval", out, "--json").stdout)
        self.assertLess(result["bpc"], 8)
        again = self.succeed("eval", out, "--stride", 8, "--bytes", 500)
        self.assertIn("bpc", again.stdout)
        first = self.generate(out, "--prompt", "All", "--bytes", 60)
        same = self.generate(out, "--prompt", "All", "--bytes", 60)
        self.assertEqual(first.stdout, same.stdout)
        self.assertTrue(first.stdout.startswith("All"))
        two = self.generate(
            out, "--prompt", "All", "--prompt", "a du",
            "--bytes", 5, "--temperature", 0,
        )  # fmt: skip
        self.assertIn("==== 2\na du", two.stdout)

    def test_splits_of_other_data(self):
        text, other = self.work / "text", self.work / "other"
        text.write_text("All work and no play makes for a dull day.\n" * 400)
        other.write_text("Other work and no play.\n" * 40)
        out = self.work / "run"
        self.succeed("train", PRESET, "--data", text, "--out", out, *SMALL, "--steps", 1)

        def symbols(*words, **options):
            done = self.succeed("eval", out, "--json", *words, **options)
            self.assertIn("weights of step 1, the best", done.stderr)
            found = json.loads(done.stdout)
            self.assertEqual(found["step"], 1)
            return found["split"], found["symbols"]

        size, more = text.stat().st_size, other.stat().st_size
        test = size - size // 10 * 9
        test -= test // 2
        self.assertEqual(symbols(), ("test", test))
        self.assertEqual(symbols("--data", text), ("test", test))
        self.assertEqual(symbols("--split", "all"), ("all", size))
        self.assertEqual(symbols("--data", other), ("all", more))
        self.assertEqual(symbols("--data", other, "--split", "train"),
                         ("train", more // 10 * 9))
        self.assertEqual(symbols("--data", "-", input=other.read_bytes()), ("all", more))
        self.fails(1, ["the standard input", "empty"], "eval", out, "--data", "-",
                   stdin=subprocess.DEVNULL)

    def test_text_from_the_standard_input(self):
        text = b"All work and no play makes for a dull day.\n" * 400
        out = self.work / "new/folder/run"
        words = ["train", PRESET, "--data", "-", *SMALL]
        self.succeed(*words, "--out", out, "--steps", 1, input=text)
        self.assertEqual((out / "data.txt").read_bytes(), text)
        self.succeed("train", "--resume", out, "--steps", 2)
        fails = lambda code, said, *rest: self.fails(
            code, said, *rest, stdin=subprocess.DEVNULL)
        fails(2, [out, "already holds a run"], *words, "--out", out)
        fails(2, ["--data -", "new runs"], "train", "--resume", out, "--data", "-")
        fails(2, ["--data -", "text"], "train", "image-aft-local-4x128", "--data", "-",
              "--out", self.work / "x")
        fails(1, ["the standard input", "empty"], *words, "--out", self.work / "y")
        done = json.loads(self.succeed("data", "-", "--json", input=text).stdout)
        self.assertEqual(done["symbols"], len(text))

    def test_small_presets_learn_soon(self):
        """After 154 kB they know more than pairs of bytes (3.6 bpc)."""
        listed = json.loads(self.succeed("presets", "--json").stdout)
        configs = {each["name"]: each["config"] for each in listed}
        for name in (PRESET, "text-transformer-4x128"):
            model, train = configs[name]["model"], configs[name]["train"]
            steps = 153600 // (train["batch_size"] * model["length"])
            out = self.work / name
            self.succeed("train", name, "--out", out, "--steps", steps,
                         *sets(data__valid_bytes=20000))  # fmt: skip
            loss = metrics(out)[-1]["validation"]
            self.assertLess(loss / math.log(2), 3.4, name)

    def test_full_disk_keeps_the_checkpoint(self):
        out = self.work / "run"
        self.succeed("train", PRESET, "--out", out, *SMALL)
        checkpoint = out / "state/checkpoint.safetensors"
        before = checkpoint.read_bytes()
        # No file may exceed 16 KB, which affects large files like a full disk.
        done = aft(
            "train", "--resume", out, "--steps", 70, restore_signals=False,
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_FSIZE, (16384, 16384)
            ),
        )  # fmt: skip
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(str(checkpoint), done.stderr)
        self.assertEqual(before, checkpoint.read_bytes())
        self.assertEqual(["checkpoint.safetensors"], os.listdir(out / "state"))
        self.succeed("train", "--resume", out, "--steps", 70)
        self.assertNotEqual(before, checkpoint.read_bytes())

    def test_old_keys(self):
        """A run from before keys were renamed resumes as if it had the new ones."""
        whole, old = self.work / "whole", self.work / "old"
        self.succeed("train", PRESET, "--out", whole, *SMALL, "--steps", 12)
        shutil.copytree(whole, old)
        file = old / "config.json"
        config = json.loads(file.read_text())
        train = config["train"]
        for key, name in (
            ("rate", "learning_rate"), ("decay", "weight_decay"),
            ("floor", "min_learning_rate"), ("first", "warmup_learning_rate"),
            ("batch", "batch_size"), ("clip", "grad_clip"),
            ("warmup", "warmup_steps"), ("epoch", "steps_per_epoch"),
            ("accumulate", "grad_accumulation"), ("entropy", "entropy_weight"),
            ("validate", "validate_every"), ("save", "save_every"),
            ("report", "report_every"),
        ):  # fmt: skip
            train[key] = train.pop(name)
        file.write_text(json.dumps(config))
        for run in (whole, old):
            self.succeed("train", "--resume", run, "--steps", 25)
        for name in ("config.json", "model.safetensors",
                     "state/checkpoint.safetensors"):  # fmt: skip
            self.assertEqual((whole / name).read_bytes(), (old / name).read_bytes())
        config["train"]["learning_rate"] = config["train"]["rate"]
        file.write_text(json.dumps(config))
        self.fails(1, [file, "train.rate", "train.learning_rate", "got both"],
                   "train", "--resume", old, "--steps", 30)  # fmt: skip
        # --set takes both, in order; messages have the new ones.
        words = sets(train__rate=0.5, train__learning_rate=0.25, train__batch=3)
        info = self.succeed("info", PRESET, "--json", *words).stdout
        train = json.loads(info)["config"]["train"]
        self.assertEqual((train["learning_rate"], train["batch_size"]), (0.25, 3))
        self.assertNotIn("rate", train)
        self.fails(1, ["--set: train.learning_rate must be a number"], "info", PRESET,
                   "--set", "train.rate=x")  # fmt: skip

    def test_presets_by_inheritance(self):
        mine, out = self.work / "mine.json", self.work / "run"
        mine.write_text('{"base": "%s", "model": {"window": 8}}' % PRESET)
        self.succeed("train", mine, "--out", out, *SMALL, "--steps", 1)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["model"]["window"], config["model"]["rank"]), (8, 32))
        mine.write_text('{"base": "mine.json"}')
        self.fails(1, [mine, "is its own base"], "info", mine)

    def test_data(self):
        text = self.work / "text"
        text.write_bytes(b"aab\nbaa\nab\ncaaaaaab\n" * 100)
        described = json.loads(
            self.succeed("data", text, "--mode", "txl", "--json").stdout
        )
        self.assertEqual(3, described["vocabulary"])
        self.assertEqual(1600, described["symbols"])
        self.assertIn("enwik8", self.succeed("data").stdout)
        self.assertIn("vocabulary 256", self.succeed("data", "built-in").stdout)
        self.fails(1, ["/nowhere/text"], "data", "/nowhere/text")
        self.fails(2, ["bytes, txl, eos", "'words'"],
                   "data", text, "--mode", "words")  # fmt: skip
        self.fails(2, ["enwik8"], "data", text, "--download")
        self.fails(2, ["got none"], "data", "--download")
        here = self.work / "here"
        here.mkdir()
        self.fails(1, ["does not exist", "--download"], "data", "enwik8", "--out", here)
        # A download with the wrong contents leaves nothing behind.
        name = "tinyshakespeare.txt"
        self.fails(1, ["expected 1115394 bytes, got 2000"], "data", name,
                   "--download", "--out", here,
                   "--from", text.as_uri())  # fmt: skip
        self.assertEqual([], os.listdir(here))
        self.fails(1, ["curl failed"], "data", name, "--download",
                   "--out", here, "--from", "file:///nowhere/text")  # fmt: skip
        self.fails(1, ["network"], "data", name, "--download", "--out", here,
                   "--from", "http://localhost:1/x")  # fmt: skip
        (here / name).write_bytes(b"x" * 1115394)
        self.fails(1, ["expected SHA-256"], "data", name, "--out", here)
        self.fails(1, ["expected SHA-256"], "data", name, "--download",
                   "--out", here)  # fmt: skip
        real = Path(os.environ.get("AFT_DATA", "/nowhere")) / name
        if real.exists():
            (here / name).unlink()
            done = self.succeed("data", name, "--download", "--out", here,
                                "--from", real.as_uri())  # fmt: skip
            self.assertIn("SHA-256", done.stdout)

    def test_benches_run(self):
        rows = json.loads(self.succeed("train", "--quick", "--json", program=BENCH).stdout)
        self.assertEqual(6, len(rows))  # on text and on images
        for row in rows:
            for key in ("step_ms", "gemm_ms", "step_over_gemm", "peak_gb"):
                self.assertGreater(row[key], 0, row)
        self.assertIn("speedup", rows[0])
        rows = json.loads(
            self.succeed("generate", "--quick", "--json", program=BENCH).stdout
        )
        states = {}
        for row in rows:
            self.assertGreater(row["us_per_byte"], 0, row)
            states.setdefault(row["preset"], []).append(row["state_bytes"])
        for preset, sizes in states.items():
            grows = "transformer" in preset
            self.assertEqual(grows, sizes[0] < sizes[-1], preset)

    def test_symbols_belong_to_the_model(self):
        text, other = self.work / "text", self.work / "other"
        text.write_text("All work and no play makes for a dull day.\n" * 200)
        other.write_text("yyyyyyyyyyyyy do all play\n" * 200)
        out = self.work / "run"
        self.succeed("train", PRESET, "--data", text, "--out", out, *SMALL,
                     "--set", "data.mode=txl")  # fmt: skip
        bpc = [
            json.loads(
                self.succeed("eval", out, "--json", "--split", "train",
                             "--data", name).stdout  # fmt: skip
            )["bpc"]
            for name in (text, other)
        ]
        self.assertLess(bpc[0], bpc[1])
        # Changed text is detected.
        text.write_text("All play and no work makes for a dull day.\n" * 200)
        self.fails(1, [str(text), "data.fingerprint"],
                   "train", "--resume", out, "--steps", 70)  # fmt: skip
        text.unlink()
        done = self.generate(out, "--prompt", "All~", "--bytes", 9)
        self.assertTrue(done.stdout.startswith("All~"), done.stdout)
        self.assertIn("ignored 1 byte of the prompts that the model's vocabulary", done.stderr)
        other.write_text("What?\n" * 200)
        self.fails(1, [str(other), "byte 63"], "eval", out, "--data", other)

    @unittest.skipIf("ASAN_OPTIONS" in os.environ,
                     "sanitizers need additional memory")  # fmt: skip
    def test_memory_is_as_estimated_and_recomputation_saves_it(self):
        def peak(recompute, *more):
            words = ["--set", "model.layers=8", "--set", "train.batch_size=16",
                     "--set", f"train.recompute={recompute}", *more]  # fmt: skip
            info = json.loads(self.succeed("info", PRESET, *words, "--json").stdout)
            config = json.dumps(info["config"])
            used = self.succeed("measure", "training", config, 0).stdout
            used = float(used.split()[0])
            self.assertLess(abs(info["training_bytes"] / used - 1), 0.3, used)
            return used

        self.assertLess(peak("true"), 0.8 * peak("false"))
        peak("false", "--set", "model.mixer=attention", "--set", "model.length=512")

    def test_info_and_presets(self):
        info = json.loads(
            self.succeed("info", "enwik8-aft-local-24x256", "--json").stdout
        )
        # Per layer: q, k, v, out and MLP with biases, two norms, u and v.
        d, layers, length = 256, 24, 1024
        layer = 4 * (d * d + d) + 8 * d * d + 5 * d + 4 * d + 2 * length * 256
        self.assertEqual(info["parameters_per_layer"], layer)
        self.assertEqual(
            info["parameters"],
            layers * layer + 2 * 256 * d + length * d + 2 * d,
        )
        listed = self.succeed("presets").stdout
        for name in ("enwik8-transformer-12x512", "enwik8-aft-local-24x256-w8"):
            self.assertIn(name, listed)
        self.assertIn("1.154", listed)
        lines = listed.splitlines()
        self.assertLessEqual(max(map(len, lines)), 100)
        # By task, and small ones first.
        names = [line.split()[0] for line in lines if re.match(r"[a-z]+\d*-", line)]
        tasks = [name.split("-")[0] for name in names]
        self.assertEqual(
            list(dict.fromkeys(tasks)),
            ["text", "enwik8", "image", "cifar10", "classify", "photos", "imagenet"])
        every = json.loads(self.succeed("presets", "--json").stdout)
        self.assertEqual(sorted(names), sorted(p["name"] for p in every))
        some = self.succeed("presets", "Pixel", "cifar10").stdout
        names = [line.split()[0] for line in some.splitlines() if "pixel" in line]
        self.assertEqual(names, ["cifar10-pixelcnn", "cifar10-pixelcnn++", "cifar10-pixelsnail"])
        some = json.loads(self.succeed("presets", "snail", "--json").stdout)
        self.assertEqual(["cifar10-pixelsnail", "image-pixelsnail"], [p["name"] for p in some])
        self.fails(1, ["`aft presets` lists"], "presets", "nonsense")

    def test_errors(self):
        out = self.work / "used"
        self.succeed("train", PRESET, "--out", out, *SMALL, "--steps", 1)
        self.fails(2, [str(out), "--resume"], "train", PRESET, "--out", out, *SMALL)
        self.fails(2, ["model.windw", "model.window"],
                   "train", PRESET, "--set", "model.windw=3")  # fmt: skip
        self.fails(2, ["--set", "key=value", "'foo'"], "train", PRESET, "--set", "foo")
        for command in ("train", "info", "compare"):
            self.fails(2, ["no preset", PRESET], command, PRESET + "x")
        self.fails(1, [self.work, "a directory", "`aft presets image`"],
                   "train", PRESET, "--data", self.work)  # fmt: skip
        self.fails(1, ["/nowhere/text", "cannot be opened"],
                   "train", PRESET, "--data", "/nowhere/text")  # fmt: skip
        self.fails(1, ["enwik8", "aft data enwik8 --download"],
                   "train", "enwik8-aft-local-24x256",
                   "--data", "/nowhere/enwik8")  # fmt: skip
        self.fails(2, ["a preset or --resume"], "train")
        for device in ("gpu", "cuda:-1"):
            self.fails(2, ["--device", "cpu, cuda or cuda:1", f"'{device}'"],
                       "train", PRESET, "--device", device)  # fmt: skip
        self.fails(1, ["device meta", "finds no meta device"],
                   "train", PRESET, "--device", "meta")  # fmt: skip
        self.fails(1, ["config.json"], "train", "--resume", self.work)
        self.fails(1, ["model.width", "cannot be changed"],
                   "train", "--resume", out, "--set", "model.width=32")  # fmt: skip
        self.fails(1, ["/nowhere/config.json"], "eval", "/nowhere")
        for key, value in (("model.window", 4), ("data.mode", "txl")):
            self.fails(1, [key, "cannot be changed"],
                       "train", "--resume", out, "--set", f"{key}={value}")  # fmt: skip
        self.fails(2, ["--out"], "train", "--resume", out, "--out", "x")
        done = self.succeed("train", "--resume", out)
        self.assertIn("already has 1 step;", done.stdout)
        other = self.work / "other.txt"
        other.write_text("another text\n" * 1000)
        kept = (out / "state/checkpoint.safetensors").read_bytes()
        done = self.succeed("train", "--resume", out, "--data", other)
        self.assertEqual(kept, (out / "state/checkpoint.safetensors").read_bytes())
        self.assertIn(f"1 step, so --data {other} is not used; use a larger `--steps",
                      done.stdout)  # fmt: skip
        self.fails(1, ["expected --resume with the directory of a run"], "train",
                   "--resume", self.work / "nosuch")  # fmt: skip
        self.fails(1, ["task", '"foo"'], "train", PRESET, "--set", "task=foo")
        # A failed call leaves nothing that would prevent a corrected one.
        bad = self.work / "bad"
        for key, word in (
            ("train.batch_size=0", "train.batch_size"),
            ("train.beta2=1", "train.beta2"),
            ("train.schedule=cosin", "cosin"), ("model.length=0", "length"),
            ("data.valid_bytes=1", "valid_bytes"),
            ("train.learning_rate=-1", "train.learning_rate"),
            ("train.warmup_steps=-5", "train.warmup_steps must be 0 or more"),
            ("train.validate_every=-3", "train.validate_every must be 0 or more"),
            ("train.seed=99999999999999999999", "must be an integer below 2^63"),
            ("data.mode=foo", "data.mode must be bytes, txl or eos"),
            ("model.mixer=foo", "model.mixer must be one of"),
        ):  # fmt: skip
            self.fails(1, [word], "train", PRESET, "--out", bad, *SMALL, "--set", key)
            self.assertFalse(bad.exists(), key)
        pipe = self.work / "pipe"
        os.mkfifo(pipe)
        self.fails(1, ["not a regular file"], "train", PRESET, "--data", pipe)
        # Does not wait for the other end of a FIFO.
        (out / "metrics.jsonl").unlink()
        os.mkfifo(out / "metrics.jsonl")
        refused = [out / "metrics.jsonl", "must be a regular file"]
        self.fails(1, refused, "curves", out)
        self.fails(1, refused, "train", "--resume", out, "--steps", 5)
        (out / "metrics.jsonl").unlink()
        # Large sizes in the configuration do not cause large allocations for a
        # small file.
        config = json.loads((out / "config.json").read_text())
        config["model"]["width"] = 8000
        large = self.work / "large"
        shutil.copytree(out, large)
        (large / "config.json").write_text(json.dumps(config))
        for command in ("eval", "generate", "info", "plot", "export"):
            more = ["--out", self.work / "exported"] if command == "export" else []
            self.fails(1, [large / "model.safetensors", "the sizes in the configuration"],
                       command, large, *more)  # fmt: skip
        self.fails(1, [large / "state/checkpoint.safetensors",
                       "the sizes in the configuration"],
                   "train", "--resume", large, "--steps", 5)  # fmt: skip
        # Nor for a preset, beyond the memory of the machine.
        self.fails(1, ["the sizes in model.*", "this machine has"], "info", PRESET,
                   "--set", "model.width=2000000")  # fmt: skip
        self.fails(1, ["the sizes in model.*"], "train", PRESET, "--out", bad,
                   *SMALL, "--set", "model.width=2000000")  # fmt: skip
        self.fails(1, ["the sizes in model.*"], "info", PRESET, "--set",
                   "model.mixer=sparse", "--set", "model.window=2000000000")
        self.fails(1, ["train.batch_size 1152921504606846976", "this machine has"],
                   "train", PRESET, "--out", bad, *SMALL, "--set",
                   "train.batch_size=1152921504606846976", "--steps", 1)  # fmt: skip
        self.assertFalse(bad.exists())
        self.fails(1, ["train.ema is 0.0 in this run and cannot be changed to 0.9"], "train",
                   "--resume", out, "--set", "train.ema=0.9")  # fmt: skip
        # One bit of a weight: another finite value.
        for file, call in (("state/checkpoint.safetensors",
                            ["train", "--resume", out, "--steps", 5]),
                           ("model.safetensors", ["eval", out])):  # fmt: skip
            whole = (out / file).read_bytes()
            (out / file).write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
            self.fails(1, [out / file, "the file is damaged"], *call)
            (out / file).write_bytes(whole)
        (out / "state/checkpoint.safetensors").unlink()
        self.fails(1, ["checkpoint.safetensors", "does not exist"],
                   "train", "--resume", out, "--steps", 5)  # fmt: skip
        (out / "model.safetensors").write_bytes(b"\x08")
        self.fails(1, ["model.safetensors"], "eval", out)
        self.fails(1, ["cannot be created"], "train", PRESET, "--out", "/proc/x", *SMALL)


if __name__ == "__main__":
    main()
