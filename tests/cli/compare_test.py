"""`aft compare` and `aft-bench mixers` as a user meets them: what they write,
stopped and gone on, called wrongly. Argument: the program."""

import json
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from program import AFT, BENCH, TIMEOUT, ProgramTest, main, metrics, sets

SMALL = sets(model__layers=1, model__width=16, model__length=32,
             model__heads=2, data__valid_bytes=500)  # fmt: skip
TWO = ["text-aft-simple-4x128", "text-linear-attention-4x128"]


class TestCompare(ProgramTest):
    def compare(self, *arguments):
        out = self.work / "compared"
        done = self.succeed("compare", *arguments, "--out", out, "--threads", 1)
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
        """Whether a process has the directory among its arguments."""
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(out).encode() in file.read_bytes():
                    return True
            except OSError:
                pass  # it has ended
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
        # The same again is known already; something else is refused.
        _, done = self.compare(*words, "--json")
        self.assertEqual(json.loads(done.stdout), rows)
        self.fails(1, [str(out), "another comparison", "batch"], "compare", *TWO,
                   "--speed", "--batch", 2, "--out", out, *SMALL)  # fmt: skip
        # One system more, and only that is measured.
        words.insert(2, "text-performer-4x128")
        _, done = self.compare(*words)
        three = self.check_files(out, words[:3])
        self.assertEqual(three[:2], rows)
        for word in ("system", "steps/s", "peak_gb", "text-performer-4x128"):
            self.assertIn(word, done.stdout)

    def test_words_for_lists(self):
        out, _ = self.compare("text", "--speed", "--batch", 1, "--repeat", 1, *SMALL)
        names = [p["name"] for p in json.loads(self.succeed("presets", "--json").stdout)
                 if p["name"].startswith("text-") and "4x128" in p["name"]]  # fmt: skip
        self.assertGreaterEqual(len(names), 10)
        for system in self.check_files(out, names):
            self.assertEqual(system["error"], "", system["name"])
            self.assertGreater(system["rate"], 0)
        for word, task in (("enwik8", "language"), ("cifar10", "image"),
                           ("imagenet", "classification"), ("image", "image"),
                           ("classify", "classification")):  # fmt: skip
            other = "image-pixelcnn" if task == "language" else TWO[0]
            self.fails(2, [word + "-", f"of task {task}"], "compare", word, other)

    def test_figures_of_the_paper(self):
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

    def test_training(self):
        words = [*TWO, *SMALL, *sets(train__save=2, train__batch=2)]
        out, done = self.compare(*words, "--steps", 6, "--json")
        for row in json.loads(done.stdout):
            self.assertEqual(row["error"], "")
            self.assertLess(row["loss"], 9)
            self.assertGreater(row["loss"], 1)
            self.assertTrue((out / row["name"] / "model.safetensors").exists())
        page = (out / "report.html").read_text()
        self.assertEqual(page.count("<svg"), 2)  # bars and curves
        self.succeed("compare", TWO[0], "--seconds", 1, "--repeat", 1, *SMALL,
                     "--out", self.work / "short")  # fmt: skip

    def test_stopped_and_gone_on(self):
        """A run that is stopped in its first system, by Ctrl-C and by a kill,
        ends as one that never stopped."""
        words = [*TWO, *SMALL, *sets(train__save=20, train__batch=2), "--steps",
                 1500, "--threads", 1]  # fmt: skip
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
                self.assertEqual(run.returncode, 0)
                self.assertIn("0 of 2 systems done", stdout)
            deadline = time.monotonic() + TIMEOUT
            while self.working_in(torn):  # what was begun ends with it
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.1)
        self.succeed(*command[1:])
        for a, b in zip(*(self.check_files(d, TWO) for d in (whole, torn))):
            self.assertEqual(a["loss"], b["loss"])

    def test_classes_and_networks(self):
        names = ["classify-aft-conv-4x96", "classify-lambda-4x96",
                 "classify-resnet-14x16"]  # fmt: skip
        out, done = self.compare(*names, "--speed", "--batch", 2, "--repeat", 1)
        self.assertIn("images/s", done.stdout)
        self.assertTrue(all(s["rate"] > 0 for s in self.check_files(out, names)))

    def test_kernels(self):
        """Of AFT-conv, how sharp they are; no columns where nobody has any."""
        small = sets(
            model__layers=1, model__width=16, model__heads=4, model__patch=4,
            data__height=16, data__width=16, data__valid_images=12, train__batch=2,
            train__validate=2, train__save=4,
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

    def test_one_that_fails(self):
        """Heads that divide one width and not the other: the reason is shown,
        and the other one is measured."""
        other = self.work / "wide.json"
        preset = {"task": "language", "model": {
            "mixer": "attention", "layers": 1, "width": 18, "heads": 4,
            "length": 32}}  # fmt: skip
        other.write_text(json.dumps(preset))
        _, done = self.compare(other, "text-aft-simple-4x128", "--speed",
                               "--batch", 1, "--repeat", 1, "--json",
                               *sets(model__length=32))  # fmt: skip
        wrong, right = json.loads(done.stdout)
        self.assertIn("heads", wrong["error"])
        self.assertGreater(right["rate"], 0)

    def test_wrong_calls(self):
        self.fails(2, ["systems"], "compare")
        self.fails(1, ["text-aft-simpel", "text-aft-simple"], "compare",
                   "text-aft-simpel-4x128")  # fmt: skip
        self.fails(2, ["language", "image"], "compare", TWO[0],
                   "image-aft-simple-4x128")  # fmt: skip
        self.fails(2, ["twice"], "compare", TWO[0], TWO[0])
        self.fails(2, ["--speed", "--steps"], "compare", *TWO, "--speed",
                   "--steps", 5)  # fmt: skip
        self.fails(2, ["--data"], "compare", *TWO, "--speed", "--data", "x")
        self.fails(1, ["/nowhere/at/all"], "compare", *TWO, "--speed", "--out",
                   "/nowhere/at/all")  # fmt: skip
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
