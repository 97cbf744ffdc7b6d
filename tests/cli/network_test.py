"""Networks other than stacks of mixer blocks, and the compared mixers, through
the whole program: training, killing and resuming, evaluation, sampling, export.
Argument: the program."""

import json
import signal

from images import folder, noise
from program import BENCH, ProgramTest, main, sets

IMAGES = {
    "image-pixelcnn": sets(model__layers=2, model__width=6),
    "image-pixelcnn++": sets(model__filters=4, model__resnets=1, model__mixtures=2),
    "image-pixelsnail": sets(model__filters=4, model__blocks=1, model__resnets=1,
                             model__mixtures=2, model__key=2, model__value=2),
    "image-local2d-4x128": sets(model__layers=1, model__width=16),
}  # fmt: skip
SMALL = sets(data__height=8, data__width=8, data__valid_images=4, train__batch_size=2,
             train__steps=80, train__save_every=3,
             train__validate_every=40)  # fmt: skip
CLASSES = {
    "classify-resnet-14x16": sets(model__width=4),
    "classify-lambda-4x96": sets(model__layers=1, model__width=16, model__heads=2),
}
FEW = sets(data__height=16, data__width=16, data__valid_images=20, train__batch_size=4,
           train__steps=80, train__save_every=3, train__validate_every=40,
           train__ema=0.9)  # fmt: skip


class TestImages(ProgramTest):
    def test_from_training_to_export(self):
        for preset, size in IMAGES.items():
            with self.subTest(preset):
                out, grid = self.work / preset, self.work / "grid.png"
                words = [preset, *SMALL, *size]
                self.disturb(out, ["train", *words, "--out", out], [signal.SIGKILL])
                whole = self.work / (preset + "-whole")
                self.succeed("train", *words, "--out", whole)
                self.same_runs(whole, out)
                result = json.loads(
                    self.succeed("eval", out, "--images", 5, "--json").stdout
                )
                self.assertLess(result["bits_per_dim"], 9)
                self.succeed("sample", out, "--count", 1, "--out", grid)
                self.succeed("complete", out, "--count", 2, "--times", 1, "--keep",
                             0.9, "--out", grid)  # fmt: skip
                self.succeed("export", out, "--out", self.work / "weights")
                config = json.loads((out / "config.json").read_text())["model"]
                self.assertIn(config.get("network", config.get("mixer")),
                              self.succeed("info", out).stdout)  # fmt: skip

    def test_wrong_calls(self):
        out = self.work / "run"
        self.succeed("train", "image-pixelcnn", *SMALL, *IMAGES["image-pixelcnn"],
                     "--steps", 1, "--out", out)  # fmt: skip
        self.fails(1, ["model.network", "pixelcnn"], "train", "--resume", out,
                   "--set", "model.network=pixelcnn++")  # fmt: skip
        self.fails(1, ["model.width", "multiple of 3"], "train", "image-pixelcnn",
                   "--set", "model.width=8", "--out", self.work / "x")  # fmt: skip
        self.fails(1, ["train.recompute"], "train", "image-pixelcnn", "--set",
                   "train.recompute=true", "--out", self.work / "y")  # fmt: skip
        self.fails(2, ["sequence model", "pixelcnn"], "train", "image-pixelcnn",
                   program=BENCH)  # fmt: skip
        self.fails(2, ["sequence model", "pixelcnn"], "generate", "image-pixelcnn",
                   program=BENCH)  # fmt: skip
        self.fails(2, ["--names", "pixelcnn"], "export", out, "--names", "timm",
                   "--out", self.work / "w")  # fmt: skip


class TestClasses(ProgramTest):
    def test_from_training_to_export(self):
        for preset, size in CLASSES.items():
            with self.subTest(preset):
                out = self.work / preset
                words = [preset, *FEW, *size]
                self.disturb(out, ["train", *words, "--out", out], [signal.SIGKILL])
                whole = self.work / (preset + "-whole")
                self.succeed("train", *words, "--out", whole)
                self.same_runs(whole, out)
                result = json.loads(
                    self.succeed("eval", out, "--images", 20, "--json").stdout
                )
                self.assertLessEqual(result["top1"], result["top5"])
                some = folder(self.work / (preset + "-some"), [noise(20, 20)] * 2)
                named = json.loads(self.succeed(
                    "classify", out, some, "--top", 2, "--json",
                ).stdout)  # fmt: skip
                self.assertEqual([len(each["top"]) for each in named], [2, 2])
                self.succeed("classify", preset, "--quick", *size, program=BENCH)

    def test_any_size(self):
        out = self.work / "run"
        self.succeed("train", "classify-resnet-14x16", *FEW,
                     *CLASSES["classify-resnet-14x16"], "--steps", 1,
                     "--out", out)  # fmt: skip
        self.succeed("eval", out, "--images", 2, "--size", 27)
        self.fails(1, ["8 or more"], "eval", out,
                   "--images", 2, "--size", 5)  # fmt: skip
        self.fails(1, [out, "model.width 16, got 4"], "train", "classify-resnet-14x16",
                   "--init", out, "--out", self.work / "other")  # fmt: skip
        # Outputs are copied by class: all but that of the class "disc".
        file = out / "config.json"
        file.write_text(file.read_text().replace('"disc"', '"disk"'))
        told = self.succeed("train", "classify-resnet-14x16", *FEW,
                            *CLASSES["classify-resnet-14x16"], "--steps", 1, "--init",
                            out, "--out", self.work / "other").stderr  # fmt: skip
        self.assertRegex(told, r"copied \d+ tensors: .*, fc,.*\n"
                               r"  newly initialised: 2 tensors: fc\n")  # fmt: skip
        self.fails(1, ["network resnet"], "train", "classify-aft-conv-4x96",
                   "--init", out, "--out", self.work / "another")  # fmt: skip


if __name__ == "__main__":
    main()
