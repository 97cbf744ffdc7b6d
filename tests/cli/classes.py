"""Shared by the tests of classification: classes by colour, and small models
of them and of the built-in shapes."""

import json
import tempfile
from pathlib import Path

from images import RANDOM, folder
from program import ProgramTest, aft, sets

# Classes by colour. Names are sorted by bytes.
COLOURS = {"Red fox": (220, 30, 30), "blue": (30, 30, 220), "10 green": (30, 220, 30)}
NAMES = ["10 green", "Red fox", "blue"]


def painted(colour, height=20, width=24):
    """An image of about that colour."""
    return [
        bytes(min(max(c + RANDOM.randrange(-25, 26), 0), 255)
              for _ in range(width) for c in colour)
        for _ in range(height)
    ]  # fmt: skip


def class_folder(path, colour, count):
    return folder(path, [painted(colour) for _ in range(count)])


class ClassesTest(ProgramTest):
    """Provides two small classifiers: of colours and of the built-in shapes."""

    PRESET = "classify-aft-conv-4x96"
    SIDE, PATCH = 16, 4
    SMALL = sets(
        model__layers=1, model__width=16, model__heads=4, model__window=3,
        model__patch=PATCH, data__height=SIDE, data__width=SIDE,
        data__valid_images=30, train__batch_size=4, train__steps=20,
        train__validate_every=10, train__report_every=5, train__save_every=5,
    )  # fmt: skip
    FAST = sets(train__learning_rate=0.01, train__warmup_steps=5,
                train__batch_size=8, train__steps=40)  # fmt: skip

    @classmethod
    def setUpClass(cls):
        cls.shared = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.colours, cls.shapes = cls.shared / "colours", cls.shared / "shapes"
        cls.data = cls.shared / "data"
        for name, colour in COLOURS.items():
            class_folder(cls.data / name, colour, 20)
        cls.trained = aft(*cls.training(cls.colours, "--data", cls.data, *cls.FAST))
        shapes = aft(*cls.training(cls.shapes))
        for done in (cls.trained, shapes):
            if done.returncode != 0:
                raise RuntimeError(done.stderr)

    @classmethod
    def training(cls, out, *arguments):
        """The arguments of the call."""
        return ["train", cls.PRESET, "--out", out, *cls.SMALL, *arguments]

    def train(self, out, *arguments):
        return self.succeed(*self.training(out, *arguments))

    def evaluate(self, model, *arguments):
        words = ["eval", model, "--json", *arguments]
        return json.loads(self.succeed(*words).stdout)
