"""`aft curves`, and the charts of runs in a browser: no text may overlap another one or
reach beyond the image. Argument: the program."""

import json
import shutil
import xml.etree.ElementTree as ElementTree

from browser import Browser
from program import ProgramTest, main

LONG = "a-run-with-a-name-that-is-longer-than-most-of-the-others-and-ends-in-"
# The boxes of all texts of all charts, and of the charts.
BOXES = """
return Array.from(document.querySelectorAll("svg")).map((svg) => {
  const box = (node) => {
    const r = node.getBoundingClientRect();
    return [r.left, r.top, r.right, r.bottom, node.textContent];
  };
  return [box(svg), ...Array.from(svg.querySelectorAll("text"), box)];
});
"""


def write_run(run, task, points):
    """A run with these steps and validation losses; the training loss is 1 above."""
    run.mkdir(parents=True)
    lines = [{"step": step, "loss": loss + 1, "seconds": 0.5 * step,
              "validation": loss} for step, loss in points]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in lines))
    if task:
        config = {"task": task, "model": {"mixer": "aft-simple"}}
        (run / "config.json").write_text(json.dumps(config))
    return run


def svg(path):
    return ElementTree.parse(path).getroot()


def of_kind(root, kind):
    return [each for each in root.iter() if each.tag.endswith("}" + kind)]


class TestCurves(ProgramTest):
    def curves(self, *arguments):
        out = self.work / "curves.svg"
        self.succeed("curves", *arguments, "--out", out)
        return svg(out)

    def run_of(self, name, task="language", points=((100, 2), (207, 1.5))):
        return write_run(self.work / name, task, points)

    def test_panels(self):
        run = self.run_of("run")
        root = self.curves(run, str(run) + "/")
        texts = [each.text for each in of_kind(root, "text")]
        for text in ("at equal steps", "at equal time", "bpc"):
            self.assertIn(text, texts)
        self.assertIn("lower is better", " ".join(filter(None, texts)))
        # Two runs with one name are shown with their paths.
        self.assertIn(str(run) + "/", texts)
        self.assertEqual(len(of_kind(root, "polyline")), 4)

    def test_classifiers_without_a_hit(self):
        """The task decides what is drawn, not the values."""
        run = self.run_of("run", "classification")
        lines = [json.loads(line) | {"top1": 0}
                 for line in (run / "metrics.jsonl").read_text().splitlines()]  # fmt: skip
        (run / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in lines))
        root = self.curves(run)
        texts = " ".join(filter(None, (each.text for each in of_kind(root, "text"))))
        self.assertIn("Top-1 accuracy in %", texts)
        self.assertNotIn("bits", texts)
        self.assertEqual(len(of_kind(root, "polyline")), 2)

    def test_the_unit_is_that_of_the_task(self):
        for task, unit in (("image", "bits/dim"), (None, "bits")):
            root = self.curves(self.run_of(unit.replace("/", ""), task))
            self.assertIn(unit, [each.text for each in of_kind(root, "text")])

    def test_single_validation(self):
        one, two = self.run_of("one", points=[(12, 2)]), self.run_of("two")
        dots = of_kind(self.curves(one, two), "circle")
        self.assertEqual(len(dots), 2)  # one per panel
        self.assertEqual(len({dot.get("fill") for dot in dots}), 1)

    def test_axes_end_at_the_data(self):
        root = self.curves(self.run_of("run"))
        ends = [max(float(p.split(",")[0]) for p in line.get("points").split())
                for line in of_kind(root, "polyline")]  # fmt: skip
        axes = [float(line.get("x2")) for line in of_kind(root, "line")
                if line.get("stroke") == "#333" and line.get("y1") == line.get("y2")]
        self.assertEqual(len(axes), 2)
        for end, axis in zip(ends, axes):
            self.assertAlmostEqual(end, axis, delta=0.2)

    def test_tasks(self):
        runs = [self.run_of(task, task) for task in ("language", "image")]
        self.fails(2, [runs[0], "language", runs[1], "image"], "curves", *runs)
        self.fails(2, [runs[0], "language", runs[1], "image"],
                   "plot", runs[0], "--runs", runs[1])  # fmt: skip
        self.curves(runs[0], self.run_of("other"), self.run_of("unknown", None))

    def test_out(self):
        run = self.run_of("run")
        for name in ("curves.png", "svg", "curves.svg.txt"):
            self.fails(2, [".svg", name], "curves", run, "--out", self.work / name)
        out = self.work / "new/deep/curves.svg"
        self.succeed("curves", run, "--out", out)
        svg(out)
        (self.work / "file").write_text("")
        bad = self.work / "file/x.svg"
        self.fails(1, [bad], "curves", run, "--out", bad)

    def test_errors(self):
        run = self.run_of("run")
        self.fails(1, ["/nowhere: does not exist"], "curves", "/nowhere")
        self.fails(2, ["at most 16"], "curves", *[run] * 17)


class TestLayout(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser(width=1500))

    def check(self, path, charts):
        self.browser.open(path)
        all_boxes = self.browser.run(BOXES)
        self.assertEqual(len(all_boxes), charts)
        for (left, top, right, bottom, _), *boxes in all_boxes:
            boxes = [box for box in boxes if box[4]]
            self.assertGreater(len(boxes), 5)
            for i, a in enumerate(boxes):
                self.assertGreaterEqual(a[0], left, a)
                self.assertGreaterEqual(a[1], top - 0.1, a)
                self.assertLessEqual(a[2], right, a)
                self.assertLessEqual(a[3], bottom, a)
                for b in boxes[:i]:
                    # Boxes of text include the space between lines.
                    apart = (a[2] <= b[0] or b[2] <= a[0] or
                             a[3] <= b[1] + 3 or b[3] <= a[1] + 3)  # fmt: skip
                    self.assertTrue(apart, (a, b))

    def test_curves(self):
        for names in (["a"], [LONG + "1"], [f"{LONG}{i}" for i in range(16)]):
            runs = [write_run(self.work / name, "language",
                              [(s, 2 + 1e-6 * i + 1 / s) for s in
                               range(7000, 30000 * (1 + i % 3), 7000)])
                    for i, name in enumerate(names)]  # fmt: skip
            out = self.work / "curves.svg"
            self.succeed("curves", *runs, "--out", out)
            self.check(out, 1)
            for run in runs:
                shutil.rmtree(run)

    def test_comparison(self):
        """A comparison of many systems that is already done."""
        out, names = self.work / "compared", [f"{LONG}{i}" for i in range(14)]
        words = ["compare", "--steps", 9, "--threads", 1, "--out", out]
        systems = []
        for i, name in enumerate(names):
            preset = self.work / f"{name}.json"
            preset.write_text(json.dumps({"base": "text-transformer-4x128"}))
            words.insert(1, preset)
            write_run(out / f"{name}.json", None, [(9, 2 + 1e-6 * i)])
            systems.insert(0, {
                "name": f"{name}.json", "parameters": 5, "loss": 2 + 1e-6 * i,
                "rate": 3 + 1e-6 * i, "peak_gb": 0.1, "paper_rate": 1, "paper_gb": 2,
                "directory": str(out / f"{name}.json")})  # fmt: skip
        settings = {"task": "language", "speed": False, "steps": 9, "seconds": 0,
                    "batch": 0, "set": [], "data": "", "threads": 1}  # fmt: skip
        (out / "compare.json").write_text(
            json.dumps({"settings": settings, "systems": systems})
        )
        done = self.succeed(*words)
        self.assertEqual(done.stderr.count("already done"), len(names))
        self.check(out / "compare.svg", 1)
        self.check(out / "report.html", 2)


if __name__ == "__main__":
    main()
