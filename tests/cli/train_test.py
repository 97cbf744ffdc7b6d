"""`aft train` and its friends as a user meets them: killed and resumed, stopped
with Ctrl-C, called wrongly. Argument: the program."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

AFT = str(Path(sys.argv[1]).resolve())
SMALL = [
    "--set", "model.layers=1", "--set", "model.width=16",
    "--set", "model.length=32", "--set", "train.batch=2",
    "--set", "train.validate=20", "--set", "train.save=3",
    "--set", "train.report=5", "--set", "data.valid_bytes=2000",
    "--steps", "60",
]  # fmt: skip
PRESET = "text-aft-local-4x128"


def aft(*arguments, **options):
    return subprocess.run(
        [AFT, *map(str, arguments)], capture_output=True, text=True, **options
    )


class TestTrain(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.work = Path(holder.name)

    def succeed(self, *arguments, **options):
        done = aft(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def fails(self, code, words, *arguments):
        done = aft(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertTrue(done.stderr.splitlines()[-1].startswith("aft: "))

    def test_killed_and_resumed_is_the_same_to_the_bit(self):
        whole, torn = self.work / "whole", self.work / "torn"
        self.succeed("train", PRESET, "--out", whole, *SMALL)
        random.seed(1)
        kills = 0
        arguments = ["train", PRESET, "--out", torn, *SMALL]
        while True:
            run = subprocess.Popen(
                [AFT, *map(str, arguments)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                # Late enough to get anywhere, early enough not to end.
                run.wait(timeout=random.uniform(0.5, 1.2) + 0.2 * kills)
                self.assertEqual(run.returncode, 0)
                break
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                run.wait()
                kills += 1
            if (torn / "config.json").exists():
                arguments = ["train", "--resume", torn]
        for name in ("model.safetensors", "state/checkpoint.safetensors"):
            self.assertEqual(
                (whole / name).read_bytes(), (torn / name).read_bytes(), name
            )
        self.assertGreaterEqual(kills, 1)

    def test_interrupt_saves_and_says_how_to_go_on(self):
        out = self.work / "run"
        run = subprocess.Popen(
            [AFT, "train", PRESET, "--out", str(out), *SMALL,
             "--set", "train.steps=1000000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 0, stderr)
        self.assertIn(f"aft train --resume {out}", stdout)
        self.assertTrue((out / "state/checkpoint.safetensors").exists())

    def test_whole_way(self):
        text = self.work / "text"
        text.write_text("All work and no play makes Jack a dull boy.\n" * 400)
        out = self.work / "jack"
        self.succeed("train", PRESET, "--data", text, "--out", out, *SMALL)
        self.assertTrue((out / "curve.svg").read_text().startswith("<?xml"))
        result = json.loads(self.succeed("eval", out, "--json").stdout)
        self.assertLess(result["bpc"], 8)
        again = self.succeed("eval", out, "--stride", 8, "--bytes", 500)
        self.assertIn("bpc", again.stdout)
        options = {"env": dict(os.environ, LC_ALL="C.UTF-8"), "errors": "replace"}
        first = self.succeed("generate", out, "--prompt", "All", "--bytes", 60, **options)
        same = self.succeed("generate", out, "--prompt", "All", "--bytes", 60, **options)
        self.assertEqual(first.stdout, same.stdout)
        self.assertTrue(first.stdout.startswith("All"))
        two = self.succeed(
            "generate", out, "--prompt", "All", "--prompt", "a du",
            "--bytes", 5, "--temperature", 0, **options,
        )  # fmt: skip
        self.assertIn("==== 2\na du", two.stdout)

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

    def test_wrong_calls(self):
        out = self.work / "used"
        self.succeed("train", PRESET, "--out", out, *SMALL, "--set", "train.steps=1")
        self.fails(1, [str(out), "--resume"], "train", PRESET, "--out", out, *SMALL)
        self.fails(1, ["model.windw", "model.window"],
                   "train", PRESET, "--set", "model.windw=3")  # fmt: skip
        self.fails(1, ["no preset", PRESET], "train", PRESET + "x")
        self.fails(1, ["/nowhere/text", "cannot be opened"],
                   "train", PRESET, "--data", "/nowhere/text")  # fmt: skip
        self.fails(2, ["a preset or --resume"], "train")
        self.fails(1, ["config.json"], "train", "--resume", self.work)
        self.fails(1, ["checkpoint.safetensors", "must be"],
                   "train", "--resume", out, "--set", "model.width=32")  # fmt: skip
        self.fails(1, ["/nowhere/config.json"], "eval", "/nowhere")
        (out / "model.safetensors").write_bytes(b"\x08")
        self.fails(1, ["model.safetensors"], "eval", out)
        self.fails(1, ["cannot be made"], "train", PRESET, "--out", "/proc/x", *SMALL)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
