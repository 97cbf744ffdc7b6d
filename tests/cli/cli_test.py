"""The program `aft`: help, exit codes, output, the benchmarks and the demo.
Argument: the program."""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

from program import AFT, BENCH, TIMEOUT, aft, lines_of, main

KEYS = ["case", "pass", "threads", "aft_ms", "rival", "rival_ms", "ratio",
        "bound_ms", "bound_ratio", "sum_ratio", "peak_mb", "isa", "torch"]
# The default presets of `aft-bench classify`.
CLASSIFIERS = ["imagenet-deit-tiny", "imagenet-aft-full-tiny",
               "imagenet-aft-conv-tiny-k11-h32", "imagenet-aft-conv-tiny-k11-h192",
               "imagenet-deit-small", "imagenet-aft-full-small",
               "imagenet-aft-conv-small-k11-h16", "imagenet-aft-conv-small-k11-h384"]
SCRIPTS = Path(__file__).resolve().parents[2] / "bench"
SVG = "{http://www.w3.org/2000/svg}"


class Cli(unittest.TestCase):
    def aft(self, *arguments, code=0, env=None, program=AFT):
        """Runs `aft arguments...`, checks the exit code, returns (stdout, stderr)."""
        done = aft(*arguments, env={**os.environ, **(env or {})}, program=program)
        self.assertEqual(code, done.returncode,
                         f"{arguments}: {done.stdout}\n{done.stderr}")
        return done.stdout, done.stderr

    def bench(self, *arguments, **options):
        """The same for `aft-bench`."""
        return self.aft(*arguments, program=BENCH, **options)

    def refused(self, *arguments, code=2, program=AFT):
        """The message of a call that must fail, without `aft: `."""
        out, err = self.aft(*arguments, code=code, program=program)
        self.assertEqual("", out)
        last = err.rstrip("\n").split("\n")[-1]
        name, _, message = last.partition(": ")
        self.assertEqual(Path(program).name, name, err)
        return message

    def rows(self, *arguments, **env):
        out, _ = self.bench("ops", "--quick", "--json", *arguments, env=env)
        return json.loads(out)

    # ---- help, version, usage errors ----------------------------------------

    def test_help_shows_examples(self):
        commands = [(AFT, c) for c in (
            [], ["demo"], ["train"], ["data"], ["eval"], ["generate"], ["info"],
            ["presets"], ["curves"], ["bench"])]  # fmt: skip
        commands += [(BENCH, c) for c in (
            [], ["ops"], ["train"], ["generate"], ["classify"], ["mixers"],
            ["distributed"], ["steady"])]  # fmt: skip
        for program, command in commands:
            with self.subTest(program=program, command=command):
                out, err = self.aft(*command, "--help", program=program)
                self.assertIn("Example", out)
                self.assertIn(" ".join([Path(program).name, *command]), out)
                for hidden in ("measure ", "-rank"):
                    self.assertNotRegex(out, f"(?m)^  {hidden}")
                self.assertEqual("", err)
        out, _ = self.bench("ops", "--help")
        for option in ("--json", "--filter", "--repeat", "--threads",
                       "--memory", "--scaling", "--plot", "--quick"):
            self.assertIn(option, out)

    def test_version(self):
        out, _ = self.aft("--version")
        self.assertRegex(out, r"^aft \d+\.\d+\.\d+\n$")
        self.assertEqual(out.replace("aft", "aft-bench"), self.bench("--version")[0])

    def test_wrong_usage_exits_with_2(self):
        for arguments, message in (
            ([], "expected a command"),
            (["trian"], "there is no command 'trian'; did you mean train?"),
            (["help", "evla"], "there is no command 'evla'; did you mean eval?"),
            (["eval", "x", "--split", "foo"], "one of train, valid, test, all, got 'foo'"),
            (["data", "--mode", "foo"], "expected one of bytes, txl, eos, got 'foo'"),
            (["train", "x", "--data", ""], "--data: the value is empty"),
            (["train", "x", "--out", ""], "--out: the value is empty"),
            (["eval", ""], "model: the value is empty"),
            (["generate", "x", "--bytes", "1e3"],
             "--bytes: expected an integer in [1, 1099511627776], got '1e3'"),
            (["generate", "x", "--bytes", "0x10"], "got '0x10'"),
            (["generate", "x", "--seed", "abc"],
             "expected an integer in [0, 9223372036854775807], got 'abc'"),
            (["generate", "x", "--seed", "-1"], "got '-1'"),
            (["sample", "x", "--seed", "9223372036854775808"],
             "got '9223372036854775808'"),
            (["train", "--stepz", "3"], "unknown option --stepz; did you mean --steps?"),
            (["train", "--zzzzzzzz", "3"], "unknown option --zzzzzzzz; see"),
            (["classify"], "missing argument: model images..."),
            (["classify", "x"], "missing argument: images..."),
            (["export", "x"], "missing argument: --out"),
            (["generate", "x", "--top-p", "2"], "a number in [0, 1], got '2'"),
            (["train", "x", "--timeout", "0"], "a number in [1, 1000000], got '0'"),
            (["import", "x", "--seed", "1.5"], "got '1.5'"),
            (["bench", "--nonsense"], "--nonsense"),
            (["demo", "--nonsense"], "--nonsense"),
            (["aft-bench"], "expected a command"),
            (["aft-bench", "frobnicate"], "frobnicate"),
            (["aft-bench", "ops", "--nonsense"], "--nonsense"),
            (["aft-bench", "ops", "--repeat", "0"], "--repeat"),
            (["aft-bench", "ops", "--repeat", "many"], "many"),
            (["aft-bench", "ops", "--threads", "0"], "--threads"),
            (["aft-bench", "ops", "--threads", "-3"], "--threads"),
            (["aft-bench", "ops", "--memory", "--scaling"], "--memory"),
            (["aft-bench", "ops", "--plot", "x.svg"], "--scaling"),
            (["aft-bench", "ops", "--filter", "softmax"], "'softmax'"),
            (["aft-bench", "ops", "--memory", "--filter", "softmax"], "softmax"),
            (["aft-bench", "ops", "--scaling", "--filter", "softmax"], "softmax"),
            (["aft-bench", "classify", "imagenet-deit-tiny", "text-aft-local-4x128"],
             "text-aft-local-4x128 is of task language"),
        ):
            with self.subTest(arguments=arguments):
                program = AFT
                if arguments[:1] == ["aft-bench"]:
                    program, arguments = BENCH, arguments[1:]
                self.assertIn(message, self.refused(*arguments, program=program))

    def test_help_is_a_command(self):
        self.assertEqual(self.aft("help"), self.aft("--help"))
        self.assertEqual(self.aft("help", "eval"), self.aft("eval", "--help"))

    def test_plot_that_cannot_be_written_fails_at_once(self):
        message = self.refused("ops", "--scaling", "--plot", "/dev/null/all.svg",
                               code=1, program=BENCH)
        self.assertIn("/dev/null/all.svg", message)
        self.assertIn("Not a directory", message)

    def test_full_disk_is_a_failure(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [BENCH, "ops", "--quick", "--filter", "simple",
                 "--repeat", "1"], stdout=full, stderr=subprocess.PIPE,
                text=True)
        self.assertEqual(1, done.returncode)
        self.assertIn("aft-bench: cannot write to the standard output", done.stderr)

    # ---- aft-bench ops ----------------------------------------------------------

    def test_no_control_characters_reach_the_terminal(self):
        done = aft("\x1b[2J\x07bell")
        self.assertEqual(done.returncode, 2)
        self.assertIn("\\x1b[2J\\x07bell", done.stderr)
        self.assertNotIn("\x1b", done.stderr)

    def test_help_that_cannot_be_written_is_an_error(self):
        for words in (["--help"], ["--version"], ["train", "--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([AFT, *words], stdout=full,
                                      stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn("cannot write to the standard output", done.stderr)

    def test_json_is_one_array_with_exactly_the_keys(self):
        rows = self.rows("--threads", "2")
        rivals = {}
        for row in rows:
            self.assertEqual(KEYS, list(row))
            self.assertIn(row["pass"], ("forward", "forward+backward"))
            self.assertEqual(2, row["threads"])
            for key in ("aft_ms", "rival_ms", "ratio", "bound_ms",
                        "bound_ratio", "sum_ratio"):
                self.assertGreater(row[key], 0, (key, row))
            self.assertLessEqual(row["sum_ratio"], row["bound_ratio"])
            self.assertRegex(row["torch"], r"^\d+\.\d+")
            self.assertGreaterEqual(row["peak_mb"], 0)
            # Printed figures are rounded to 1e-4.
            self.assertLess(abs(row["ratio"] * row["aft_ms"] - row["rival_ms"]),
                            1e-4 * (1 + row["ratio"] + row["aft_ms"]))
            kind = row["case"].split("-")[0]
            rivals.setdefault(kind, set()).add((row["rival"], row["pass"]))
        both = ("forward", "forward+backward")
        attention = ("attention", "naive attention")
        expected = {"simple": ("naive", *attention),
                    "local32": ("naive", *attention),
                    "full32": ("naive", *attention, "gemm"),
                    "conv5": ("naive", "naive channels-last")}
        expected = {k: {(r, p) for r in v for p in both}
                    for k, v in expected.items()}  # fmt: skip
        expected["one_tap"] = {("simple", "forward")}  # inference only
        self.assertEqual(expected, rivals)
        heads = {r["case"].split("-")[-1] for r in rows if "conv" in r["case"]}
        self.assertEqual({"h64", "h16"}, heads)

    def test_filter_selects_cases(self):
        rows = self.rows("--filter", "conv", "--repeat", "1")
        self.assertEqual(6, len(rows))
        self.assertTrue(all("conv" in row["case"] for row in rows))

    def test_isa_limits_aft_and_its_rivals(self):
        if "avx2" not in Path("/proc/cpuinfo").read_text():
            self.skipTest("this processor has no AVX2")
        rows = self.rows("--filter", "simple", "--repeat", "1", "--isa", "avx2")
        self.assertEqual({"AVX2"}, {row["isa"] for row in rows})

    def test_table_has_the_columns_of_json(self):
        out, err = self.bench("ops", "--quick", "--filter", "simple",
                            "--repeat", "1")
        header = next(x for x in out.split("\n") if x.startswith("case"))
        columns = [k for k in KEYS if k not in ("isa", "torch")]  # above it
        self.assertEqual(sorted(columns + ["target"]), sorted(header.split()))
        self.assertRegex(out, r"threads?, \S+, torch \d")
        self.assertIn("GB/s", out)
        lines = [x for x in err.split("\n") if x]  # plain: no terminal
        self.assertEqual(7, len(lines), err)
        for i, line in enumerate(lines):
            self.assertTrue(line.startswith(f"[{i + 1}/7] "), line)
        self.assertNotIn("\r", err)

    def test_threads(self):
        one = ("--filter", "simple", "--repeat", "1")
        def threads(*arguments, **env):
            return {r["threads"] for r in self.rows(*one, *arguments, **env)}
        self.assertEqual({1}, threads(OMP_NUM_THREADS="1"))
        self.assertEqual({3}, threads(OMP_NUM_THREADS="3,1"))
        self.assertEqual({2}, threads("--threads", "2", OMP_NUM_THREADS="1"))
        cores = len(os.sched_getaffinity(0))
        self.assertEqual({cores}, threads(OMP_NUM_THREADS="nonsense"))

    @unittest.skipIf("ASAN_OPTIONS" in os.environ,
                     "sanitizers need additional memory")  # fmt: skip
    def test_memory_stays_within_40_tensors(self):
        out, _ = self.bench("ops", "--memory", "--json")
        rows = json.loads(out)
        self.assertEqual(["simple", "local32", "full16", "conv31"],
                         [r["case"].split("-")[0] for r in rows])
        for row in rows:
            self.assertIn("-T32768-D64", row["case"])
            # At least y, dq, dk and dv; conv's k has 8 of 64 channels.
            self.assertGreaterEqual(row["tensors"], 3, row)
            self.assertLessEqual(row["tensors"], 40, row)

    # ---- scaling and its plot -----------------------------------------------

    def test_scaling_writes_a_legible_plot(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cost.svg")
            out, _ = self.bench("ops", "--scaling", "--quick", "--repeat",
                              "1", "--plot", path)
            self.assertIn(path, out)
            root = xml.parse(path).getroot()
        self.assertEqual(SVG + "svg", root.tag)
        names = ["simple", "local32", "conv31", "full", "attention",
                 "naive attention"]
        for name in names:
            self.assertRegex(out, rf"(?m)^ *T .*\b{name}\b")
        text = [e.text for e in root.iter(SVG + "text")]
        for name in names:  # the legend, and the ends of the lines of 2 panels
            self.assertEqual(3, text.count(name), text)
        for label in ("Time", "length T", "ms", "MB", "512", "1k"):
            self.assertIn(label, text)
        lines = list(root.iter(SVG + "polyline"))
        self.assertEqual(2 * len(names), len(lines))
        self.assertEqual(len(names), len({e.get("stroke") for e in lines}))
        width, height = float(root.get("width")), float(root.get("height"))
        for line in lines:
            points = line.get("points").split()
            self.assertEqual(2, len(points))
            for point in points:
                x, y = map(float, point.split(","))
                self.assertTrue(0 <= x <= width and 0 <= y <= height, point)

    def test_scaling_as_json(self):
        out, _ = self.bench("ops", "--scaling", "--quick", "--json",
                          "--repeat", "1", "--filter", "simple")
        self.assertEqual([512, 1024], [r["T"] for r in json.loads(out)])

    # ---- aft-bench classify -----------------------------------------------------

    def test_classifiers_as_json_and_as_a_table(self):
        words = ["classify", "--quick", "--threads", "1"]
        rows = json.loads(self.bench(*words, "--json")[0])
        self.assertEqual(CLASSIFIERS, [row["preset"] for row in rows])
        rates = {row["preset"]: row["images_per_second"] for row in rows}
        for row in rows:
            self.assertEqual((2, 1), (row["batch"], row["threads"]))
            for key in ("parameters", "images_per_second", "gflops", "peak_gb"):
                self.assertGreater(row[key], 0, (key, row))
            if "deit" in row["preset"]:
                self.assertNotIn("speedup", row)
                self.assertNotIn("memory_share", row)
                continue
            size = "tiny" if "tiny" in row["preset"] else "small"
            ratio = row["images_per_second"] / rates[f"imagenet-deit-{size}"]
            self.assertAlmostEqual(ratio, row["speedup"])
            self.assertGreater(row["memory_share"], 0)
        out, err = self.bench(*words)
        self.assertIn("1 thread, batch 2", out)
        self.assertEqual(len(CLASSIFIERS), len(lines_of(out, "imagenet-")))
        for row in rows:
            (line,) = lines_of(out, row["preset"] + " ")
            _, parameters, rate, rest = line.split(maxsplit=3)
            self.assertEqual(row["parameters"], int(parameters))
            self.assertGreater(float(rate), 0)
            if "deit" in row["preset"]:
                self.assertRegex(rest, r"^- +\S+ +\S+ +-$")
            else:
                self.assertRegex(rest, r"^\S+ >= 1\S* (met|MISSED) ")
        lines = [x for x in err.split("\n") if x]  # presets, and two widths
        self.assertEqual(len(CLASSIFIERS) + 2, len(lines), err)

    def test_classifiers_of_pytorch(self):
        try:
            importlib.import_module("torch")
        except (ImportError, OSError) as error:
            self.skipTest(f"{sys.executable} has no torch: {error}")

        def measure(*arguments):
            done = subprocess.run(
                [sys.executable, SCRIPTS / "pytorch_classify.py", "--quick",
                 "--threads", "1", *arguments], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertIn("agree with the double loop", done.stderr)
            return done.stdout

        systems = ["deit-tiny", "aft-conv-tiny-h32"]
        rows = json.loads(measure("--systems", ",".join(systems), "--streams", "2",
                                  "--aft-bench", BENCH, "--json"))
        self.assertEqual(systems, [r["system"] for r in rows if "system" in r])
        self.assertEqual(CLASSIFIERS[:3], [r["preset"] for r in rows if "preset" in r])
        for row in rows:
            self.assertGreater(row["images_per_second"], 0, row)
            self.assertGreater(row["peak_gb"], 0, row)
        for row in rows[len(systems):]:
            self.assertGreater(row["to_deit"], 0, row)
            self.assertEqual("conv" in row["preset"], "to_aft_conv" in row)
            self.assertEqual("aft" in row["preset"], "deit_target" in row)
        out = measure("--systems", "deit-tiny", "--method", "bmm")
        (line,) = lines_of(out, "deit-tiny ")
        self.assertTrue(line.endswith(" bmm"), line)
        self.assertGreater(float(line.split()[1]), 0)

    # ---- demo ---------------------------------------------------------------

    def test_demo_is_exact(self):
        out, _ = self.aft("demo")
        errors = re.findall(
            r"(?m)^(simple|local|full|conv) .* (\d\.\de-\d\d) +(\d\.\de-\d\d)$",
            out)
        self.assertEqual(["simple", "local", "full", "conv"],
                         [e[0] for e in errors], out)
        for name, y, gradients in errors:
            self.assertLess(float(y), 1e-5, name)
            self.assertLess(float(gradients), 1e-5, name)
        self.assertIn("What to try next", out)


if __name__ == "__main__":
    main()
