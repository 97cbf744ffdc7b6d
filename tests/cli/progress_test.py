"""Progress lines on terminals: they fit the width, and terminals that cannot overwrite
get plain lines. Argument: the program."""

import re

from program import ProgramTest, main, on_terminal, sets

STEPS = 12
TRAIN = ["train", "text-aft-conv-4x128", "--steps", STEPS, *sets(
    model__layers=1, model__width=16, model__length=32, train__batch_size=2,
    train__validate_every=6, train__report_every=3, data__valid_bytes=500,
)]  # fmt: skip
# The columns that a field needs, without which it is dropped.
FIELDS = ("step ", "bpc ", " left", "loss ", "tokens/s", " GB")


def overwritten(seen):
    """The lines that are overwritten: each begins with a carriage return."""
    return [line.removesuffix("\033[K") for line in re.findall(r"\r([^\r\n]+)", seen)
            if line.strip("\033[K")]  # fmt: skip


class TestProgress(ProgramTest):
    def train(self, columns, **variables):
        self.run_number = getattr(self, "run_number", 0) + 1
        out = self.work / f"run{self.run_number}"
        return on_terminal(columns, *TRAIN, "--out", out, **variables)

    def steps(self, seen):
        return [line for line in overwritten(seen) if "validation" not in line
                and line.startswith("step ")]  # fmt: skip

    def test_training_fits_the_terminal(self):
        shown = {}
        for columns in (12, 24, 40, 60, 200):
            seen = self.train(columns, TERM="xterm")
            lines = self.steps(seen)
            self.assertEqual(len(lines), STEPS - 2, seen)
            for line in lines:
                self.assertLess(len(line), columns)
                self.assertTrue(line.startswith("step "), line)
            shown[columns] = [f for f in FIELDS if f in lines[-1]]
            # Lines that stay are complete.
            self.assertEqual(seen.count("(best "), 2)
            self.assertEqual(seen.count(" in the top position"), 2)
            self.assertIn("1 layer of 16", seen)
        self.assertEqual(shown[200], list(FIELDS))
        # The least important fields are dropped first.
        for columns, fields in shown.items():
            self.assertEqual(fields, list(FIELDS[: len(fields)]), columns)
        self.assertEqual(shown[12], ["step "])
        self.assertIn("bpc ", shown[24])
        self.assertIn(" left", shown[40])

    def test_unknown_width(self):
        for variables, columns in (({"COLUMNS": "30"}, 30), ({}, 80)):
            lines = self.steps(self.train(0, TERM="xterm", **variables))
            self.assertLess(max(map(len, lines)), columns)
            self.assertGreater(max(map(len, lines)), columns - 25)
        # The terminal knows better.
        lines = self.steps(self.train(60, TERM="xterm", COLUMNS="20"))
        self.assertGreater(max(map(len, lines)), 20)

    def test_terminals_that_cannot_overwrite(self):
        for variables in ({"TERM": "dumb"}, {"TERM": ""}, {}):
            seen = self.train(40, **variables).replace("\r\n", "\n")
            self.assertNotIn("\r", seen)
            self.assertNotIn("\033", seen)
            lines = [line for line in seen.splitlines() if line.startswith("step ")]
            self.assertEqual(len(lines), 4, seen)  # one per report
            self.assertGreater(len(lines[0]), 40)

    def test_other_progress(self):
        """Commands that count items, and those that name them."""
        out = self.work / "model"
        self.train_on_text(out)
        for words, start in (
            (["eval", out, "--bytes", 1500], r"\d+/1500 symbols"),
            (["bench", out, "text-aft-simple-4x128", "--repeat", 1], r"\[\d/2\]"),
        ):
            lines = overwritten(on_terminal(26, *words, TERM="xterm"))
            self.assertTrue(lines, words)
            for line in lines:
                self.assertLess(len(line), 26)
                self.assertRegex(line, start)
            seen = on_terminal(26, *words, TERM="dumb").replace("\r\n", "\n")
            self.assertNotIn("\r", seen)
            self.assertNotIn("\033", seen)


if __name__ == "__main__":
    main()
