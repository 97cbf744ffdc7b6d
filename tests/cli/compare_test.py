"""`aft compare` and `aft-bench mixers`: output, resuming after interruption, and
usage errors. Argument: the program."""

import html
import json
import re
import shlex
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from program import AFT, BENCH, TIMEOUT, ProgramTest, aft, main, metrics, sets

SMALL = sets(model__layers=1, model__width=16, model__length=32,
             model__heads=2, data__valid_bytes=500)  # fmt: skip
TWO = ["text-aft-simple-4x128", "text-linear-attention-4x128"]


class TestCompare(ProgramTest):
    def compare(self, *arguments, code=0):
        out = self.work / "compared"
        done = aft("compare", *arguments, "--out", out, "--threads", 1)
        self.assertEqual(done.returncode, code, done.stderr)
        return out, done

    def check_files(self, out, names):
        settled = json.loads((out / "compare.json").read_text())
        self.assertEqual([s["name"] for s in settled["systems"]], names)
        ElementTree.parse(out / "compare.svg")
        page = (out / "report.html").read_text()
        for name in names:
            self.assertIn(f"<td>{name}</td>", page)
        return settled["systems"]

    def working_in(self, out):
        """Whether the arguments of a process name the directory."""
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(out).encode() in file.read_bytes():
                    return True
            except OSError:
                pass  # the process has ended
        return False

    def test_speed(self):
        words = [*TWO, "--speed", "--batch", 1, "--repeat", 2, *SMALL]
        out, done = self.compare(*words, "--json")
        rows = json.loads(done.stdout)
        self.assertEqual(rows, self.check_files(out, TWO))
        for row in rows:
            self.assertEqual(row["error"], "")
            self.assertGreater(row["rate"], 0)
            self.assertGreater(row["peak_gb"], 0.01)
            self.assertEqual(row["loss"], 0)
            info = json.loads(self.succeed("info", row["name"], *SMALL, "--json").stdout)
            self.assertEqual(row["parameters"], info["parameters"])
        self.assertEqual([row["aft"] for row in rows], [True, False])
        # A second call measures nothing; one with other options is refused.
        _, done = self.compare(*words, "--json")
        self.assertEqual(json.loads(done.stdout), rows)
        self.fails(1, [str(out), "another comparison", "batch"], "compare", *TWO,
                   "--speed", "--batch", 2, "--out", out, *SMALL)  # fmt: skip
        # With one more system, only that one is measured.
        words.insert(2, "text-performer-4x128")
        _, done = self.compare(*words)
        three = self.check_files(out, words[:3])
        self.assertEqual(three[:2], rows)
        for word in ("system", "steps/s", "peak_gb", "text-performer-4x128"):
            self.assertIn(word, done.stdout)

    def test_tables(self):
        out, _ = self.compare("text", "--speed", "--batch", 1, "--repeat", 1, *SMALL)
        presets = json.loads(self.succeed("presets", "--json").stdout)
        names = [p["name"] for p in presets if "text" in p["table"]]
        self.assertEqual(names, [f"text-{mixer}-4x128" for mixer in (
            "aft-conv", "aft-full", "aft-local", "aft-simple", "linear-attention",
            "performer", "reformer", "sparse", "synthesizer", "transformer")])  # fmt: skip
        for system in self.check_files(out, names):
            self.assertEqual(system["error"], "", system["name"])
            self.assertGreater(system["rate"], 0)
        tables = {t: p["config"]["task"] for p in presets for t in p["table"]}
        for word in ("enwik8", "enwik8-window", "cifar10", "imagenet", "image",
                     "imagenet-kernel", "classify"):  # fmt: skip
            self.assertIn(word, tables)
        described = self.succeed("compare", "--help").stdout
        for word, task in tables.items():
            self.assertIn(f"  {word}: ", described)
            other = "image-pixelcnn" if task == "language" else TWO[0]
            self.fails(2, [word.split("-")[0] + "-", f"of task {task}"],
                       "compare", word, other)  # fmt: skip

    def test_paper_figures(self):
        _, done = self.compare(
            "enwik8-aft-local-12x512", "enwik8-transformer-12x512", "--speed",
            "--batch", 1, "--repeat", 1, *SMALL, "--json",
        )  # fmt: skip
        local, transformer = json.loads(done.stdout)
        paper = {p["name"]: p["paper"] for p in
                 json.loads(self.succeed("presets", "--json").stdout)}  # fmt: skip
        for row in (local, transformer):
            said = paper[row["name"]]
            self.assertEqual(row["paper_test"], said["test"])
            self.assertEqual(row["paper_rate"], said["iterations_per_second"])
            self.assertEqual(row["paper_gb"], said["gb_per_gpu"])
        page = (self.work / "compared/report.html").read_text()
        for column in ("test", "steps/s", "gb"):
            self.assertIn(f"<th>paper: {column}</th>", page)

    def test_training(self):
        words = [*TWO, *SMALL, *sets(train__save_every=2, train__batch_size=2)]
        out, done = self.compare(*words, "--steps", 6, "--json")
        for row in json.loads(done.stdout):
            self.assertEqual(row["error"], "")
            self.assertLess(row["loss"], 9)
            self.assertGreater(row["loss"], 1)
            self.assertTrue((out / row["name"] / "model.safetensors").exists())
        page = (out / "report.html").read_text()
        self.assertEqual(page.count("<svg"), 2)  # bars and curves
        # Columns without figures are hidden.
        self.assertNotIn("paper", page)
        self.assertNotIn("<td>-</td>", page)
        self.succeed("compare", TWO[0], "--seconds", 1, "--repeat", 1, *SMALL,
                     "--out", self.work / "short")  # fmt: skip

    def test_command(self):
        """The report shows the command that repeats the comparison."""
        mine = self.work / "my system's.json"
        mine.write_text('{"base": "%s"}' % TWO[0])
        data = self.work / "a text"
        data.write_text("To be, or not to be. " * 200)
        self.succeed(
            "compare", mine, "--steps", 3, "--batch", 2, "--data", data, "--threads",
            1, *SMALL, "--out", self.work / "one", cwd=self.work,
        )  # fmt: skip
        page = (self.work / "one/report.html").read_text()
        command = html.unescape(re.search(r"<pre>(.*?)</pre>", page, re.S).group(1))
        words = shlex.split(command)
        self.assertEqual(words[:3], ["aft", "compare", str(mine)])
        for option in ("--steps", "--batch", "--data", "--set", "--threads", "--out"):
            self.assertIn(option, words)
        shutil.copytree(self.work / "one", self.work / "two")
        (self.work / "two/compare.json").unlink()
        words[words.index("--out") + 1] = str(self.work / "two")
        # The runs are complete, and no setting differs.
        self.succeed(*words[1:])
        one, two = (json.loads((self.work / d / "compare.json").read_text())
                    for d in ("one", "two"))  # fmt: skip
        self.assertEqual(one["settings"], two["settings"])
        self.assertEqual([s["loss"] for s in one["systems"]],
                         [s["loss"] for s in two["systems"]])  # fmt: skip
        # The same command does nothing again.
        words[words.index("--out") + 1] = str(self.work / "one")
        self.assertIn("already done", self.succeed(*words[1:]).stderr)

    def test_resuming(self):
        """A comparison that is interrupted in its first system, by SIGINT and by
        SIGKILL, ends with the same results as an uninterrupted one."""
        words = [*TWO, *SMALL, *sets(train__save_every=20, train__batch_size=2),
                 "--steps", 1500, "--threads", 1]  # fmt: skip
        whole, torn = self.work / "whole", self.work / "torn"
        self.succeed("compare", *words, "--out", whole)
        command = [AFT, "compare", *map(str, words), "--out", str(torn)]
        checkpoint = torn / TWO[0] / "state/checkpoint.safetensors"
        for how in (signal.SIGINT, signal.SIGKILL):
            run = subprocess.Popen(command, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)  # fmt: skip
            self.await_file(run, checkpoint)
            time.sleep(0.1)
            run.send_signal(how)
            stdout, _ = run.communicate(timeout=TIMEOUT)
            if how == signal.SIGINT:
                self.assertEqual(run.returncode, 130)
                self.assertIn("0 of 2 systems done", stdout)
            deadline = time.monotonic() + TIMEOUT
            while self.working_in(torn):  # its subprocess ends too
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.1)
        self.succeed(*command[1:])
        for a, b in zip(*(self.check_files(d, TWO) for d in (whole, torn))):
            self.assertEqual(a["loss"], b["loss"])

    def test_classifiers(self):
        names = ["classify-aft-conv-4x96", "classify-lambda-4x96",
                 "classify-resnet-14x16"]  # fmt: skip
        out, done = self.compare(*names, "--speed", "--batch", 2, "--repeat", 1)
        self.assertIn("images/s", done.stdout)
        self.assertTrue(all(s["rate"] > 0 for s in self.check_files(out, names)))

    def test_kernels(self):
        """The entropy of AFT-conv's kernels; no columns without AFT-conv."""
        small = sets(
            model__layers=1, model__width=16, model__heads=4, model__patch=4,
            data__height=16, data__width=16, data__valid_images=12, train__batch_size=2,
            train__validate_every=2, train__save_every=4,
        )  # fmt: skip
        names = ["classify-aft-conv-4x96", "classify-transformer-4x96"]
        heads = ("kernel entropy", "top position %")
        out, done = self.compare(*names, "--steps", 4, *small)
        conv, other = self.check_files(out, names)
        checked = [each for each in metrics(out / names[0]) if "validation" in each]
        self.assertEqual(len(checked), 2)
        best = min(checked, key=lambda each: each["validation"])
        for key in ("kernel_entropy", "kernel_top"):
            self.assertGreater(best[key], 0)
            self.assertAlmostEqual(conv[key], best[key])
            self.assertEqual(other[key], 0)
        page = (out / "report.html").read_text()
        for head in heads:
            self.assertIn(head, done.stdout)
            self.assertIn(f"<th>{head}</th>", page)
        (alone,) = (line for line in done.stdout.splitlines() if names[1] in line)
        (row,) = (line for line in page.splitlines() if names[1] + "</td>" in line)
        self.assertEqual(row.split("<td>")[5:7], ["-</td>"] * 2)
        self.assertEqual(alone.split()[4:6], ["-", "-"])
        done = self.succeed("compare", names[1], "--steps", 1, *small, "--out",
                            self.work / "without")  # fmt: skip
        for head in heads:
            self.assertNotIn(head, done.stdout)

    def test_failing_system(self):
        """A model that cannot be created: the reason is shown, and the other
        system is measured."""
        other = self.work / "wide.json"
        preset = {"task": "language", "model": {
            "mixer": "attention", "layers": 1, "width": 18, "heads": 4,
            "length": 32}}  # fmt: skip
        other.write_text(json.dumps(preset))
        _, done = self.compare(other, "text-aft-simple-4x128", "--speed",
                               "--batch", 1, "--repeat", 1, "--json",
                               *sets(model__length=32), code=1)  # fmt: skip
        self.assertIn("compare: 1 of 2 systems failed", done.stderr)
        wrong, right = json.loads(done.stdout)
        self.assertIn("heads", wrong["error"])
        self.assertGreater(right["rate"], 0)

    def test_usage_errors(self):
        self.fails(2, ["systems"], "compare")
        self.fails(2, ["text-aft-simpel", "text-aft-simple"], "compare",
                   "text-aft-simpel-4x128")  # fmt: skip
        self.fails(2, ["language", "image"], "compare", TWO[0],
                   "image-aft-simple-4x128")  # fmt: skip
        self.fails(2, ["twice"], "compare", TWO[0], TWO[0])
        self.fails(2, ["--speed", "--steps"], "compare", *TWO, "--speed",
                   "--steps", 5)  # fmt: skip
        self.fails(2, ["--data"], "compare", *TWO, "--speed", "--data", "x")
        (self.work / "file").write_text("")
        out = self.work / "file/compared"
        self.fails(1, [out], "compare", *TWO, "--speed", "--out", out)
        broken = self.work / "broken"
        broken.mkdir()
        (broken / "compare.json").write_text('{"settings": 1')
        self.fails(1, [str(broken / "compare.json")], "compare", *TWO,
                   "--speed", "--out", broken)  # fmt: skip
        (broken / "compare.json").write_text('{"settings": {}, "systems": 3}')
        self.fails(1, [str(broken / "compare.json")], "compare", *TWO,
                   "--speed", "--out", broken)  # fmt: skip


class TestBenchMixers(ProgramTest):
    def test_quick(self):
        plot = self.work / "cost.svg"
        rows = json.loads(self.succeed(
            "mixers", "--quick", "--repeat", 1, "--json", "--plot", plot, program=BENCH,
        ).stdout)  # fmt: skip
        self.assertEqual(len(rows), 13)
        for row in rows:
            self.assertEqual(len(row["points"]), 5, row["mixer"])
            for point in row["points"]:
                self.assertGreaterEqual(point["ms"], point["ms_beside_linear"])
            for key in ("time_by_T", "time_by_d", "memory_by_T"):
                self.assertIsNotNone(row[key])
        ElementTree.parse(plot)
        two = self.succeed("mixers", "performer", "aft-simple", "--quick",
                           "--repeat", 1, program=BENCH).stdout  # fmt: skip
        self.assertIn("T d^2 log d", two)
        self.fails(2, ["'performa'", "performer"], "mixers", "performa",
                   program=BENCH)  # fmt: skip


if __name__ == "__main__":
    main()
