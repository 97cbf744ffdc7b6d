"""Networks that are no chain of mixers, and the mixers to compare with, through
the whole program: trained, killed and resumed, judged, drawn with, exported.
Argument: the program."""

import json
import signal

from pictures import folder, noise
from program import BENCH, ProgramTest, main, sets

PICTURES = {
    "image-pixelcnn": sets(model__layers=2, model__width=6),
    "image-pixelcnn++": sets(model__filters=4, model__resnets=1, model__mixtures=2),
    "image-pixelsnail": sets(model__filters=4, model__blocks=1, model__resnets=1,
                             model__mixtures=2, model__key=2, model__value=2),
    "image-local2d-4x128": sets(model__layers=1, model__width=16),
}  # fmt: skip
SMALL = sets(data__height=8, data__width=8, data__valid_images=4, train__batch=2,
             train__steps=80, train__save=3, train__validate=40)  # fmt: skip
CLASSES = {
    "classify-resnet-14x16": sets(model__width=4),
    "classify-lambda-4x96": sets(model__layers=1, model__width=16, model__heads=2),
}
FEW = sets(data__height=16, data__width=16, data__valid_images=20, train__batch=4,
           train__steps=80, train__save=3, train__validate=40,
           train__ema=0.9)  # fmt: skip


class TestPictures(ProgramTest):
    def test_whole_way(self):
        for preset, size in PICTURES.items():
            with self.subTest(preset):
                out, sheet = self.work / preset, self.work / "sheet.png"
                words = [preset, *SMALL, *size]
                self.disturb(out, ["train", *words, "--out", out], [signal.SIGKILL])
                whole = self.work / (preset + "-whole")
                self.succeed("train", *words, "--out", whole)
                self.same_runs(whole, out)
                judged = json.loads(
                    self.succeed("eval", out, "--images", 5, "--json").stdout
                )
                self.assertLess(judged["bits_per_dim"], 9)
                self.succeed("sample", out, "--count", 1, "--out", sheet)
                self.succeed("complete", out, "--count", 2, "--times", 1, "--keep",
                             0.9, "--out", sheet)  # fmt: skip
                self.succeed("export", out, "--out", self.work / "weights")
                config = json.loads((out / "config.json").read_text())["model"]
                self.assertIn(config.get("network", config.get("mixer")),
                              self.succeed("info", out).stdout)  # fmt: skip

    def test_wrong_calls(self):
        out = self.work / "run"
        self.succeed("train", "image-pixelcnn", *SMALL, *PICTURES["image-pixelcnn"],
                     "--steps", 1, "--out", out)  # fmt: skip
        self.fails(1, ["model.network", "pixelcnn"], "train", "--resume", out,
                   "--set", "model.network=pixelcnn++")  # fmt: skip
        self.fails(1, ["model.width", "multiple of 3"], "train", "image-pixelcnn",
                   "--set", "model.width=8", "--out", self.work / "x")  # fmt: skip
        self.fails(1, ["train.recompute"], "train", "image-pixelcnn", "--set",
                   "train.recompute=true", "--out", self.work / "y")  # fmt: skip
        self.fails(2, ["sequences", "pixelcnn"], "train", "image-pixelcnn",
                   program=BENCH)  # fmt: skip
        self.fails(2, ["sequences", "pixelcnn"], "generate", "image-pixelcnn",
                   program=BENCH)  # fmt: skip
        self.fails(2, ["--names", "pixelcnn"], "export", out, "--names", "timm",
                   "--out", self.work / "w")  # fmt: skip


class TestClasses(ProgramTest):
    def test_whole_way(self):
        for preset, size in CLASSES.items():
            with self.subTest(preset):
                out = self.work / preset
                words = [preset, *FEW, *size]
                self.disturb(out, ["train", *words, "--out", out], [signal.SIGKILL])
                whole = self.work / (preset + "-whole")
                self.succeed("train", *words, "--out", whole)
                self.same_runs(whole, out)
                judged = json.loads(
                    self.succeed("eval", out, "--images", 20, "--json").stdout
                )
                self.assertLessEqual(judged["top1"], judged["top5"])
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
        self.fails(2, ["--init", "blocks"], "train", "classify-resnet-14x16",
                   "--init", out, "--out", self.work / "other")  # fmt: skip
        self.fails(1, ["network resnet"], "train", "classify-aft-conv-4x96",
                   "--init", out, "--out", self.work / "another")  # fmt: skip


if __name__ == "__main__":
    main()
