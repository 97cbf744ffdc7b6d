"""`aft bench`: the cost of models of every task, as JSON and as a table.
Argument: the program. Speeds are not checked."""

import json

from program import ProgramTest, lines_of, main, sets

TEXT = sets(model__layers=1, model__width=16, model__length=32, train__batch_size=2)
IMAGES = sets(data__height=8, data__width=8, train__batch_size=2)
KEYS = ["model", "task", "parameters", "threads", "batch", "training_bytes",
        "training_unit", "training_per_second", "inference_bytes",
        "inference_unit", "inference_per_second"]  # fmt: skip


class TestBench(ProgramTest):
    def bench(self, *arguments):
        done = self.succeed("bench", *arguments, "--repeat", 1, "--threads", 1, "--json")
        rows = json.loads(done.stdout)
        for row in rows:
            self.assertEqual(KEYS, list(row))
            self.assertEqual(1, row["threads"])
            for key in ("parameters", "training_per_second", "inference_per_second"):
                self.assertGreater(row[key], 0, (key, row))
            for key in ("training_bytes", "inference_bytes"):
                self.assertGreater(row[key], 1e7, (key, row))
        return rows

    def test_presets_of_every_task(self):
        for words, task, units in (
            (["text-aft-conv-4x128", *TEXT], "language", ("tokens", "bytes")),
            (["image-aft-local-4x128", *IMAGES, *sets(model__layers=1)], "image",
             ("tokens", "values")),
            (["image-pixelcnn", *IMAGES, *sets(model__layers=1, model__width=6)],
             "image", ("tokens", "values")),
            (["classify-aft-conv-4x96", *IMAGES, *sets(model__layers=1)],
             "classification", ("images", "images")),
            (["classify-resnet-14x16", *IMAGES, *sets(model__width=4)],
             "classification", ("images", "images")),
        ):  # fmt: skip
            with self.subTest(words[0]):
                (row,) = self.bench(*words)
                self.assertEqual(words[0], row["model"])
                self.assertEqual(task, row["task"])
                self.assertEqual(2, row["batch"])
                found = row["training_unit"], row["inference_unit"]
                self.assertEqual(units, found)

    def test_several_models_and_the_table(self):
        trained = self.work / "run"
        self.train_on_text(trained)
        info = json.loads(self.succeed("info", trained, "--json").stdout)
        rows = self.bench(trained, "text-aft-simple-4x128", "--batch", 1)
        self.assertEqual([str(trained), "text-aft-simple-4x128"],
                         [row["model"] for row in rows])  # fmt: skip
        self.assertEqual([1, 1], [row["batch"] for row in rows])
        self.assertEqual(info["parameters"], rows[0]["parameters"])
        out = self.succeed("bench", trained, "--repeat", 1).stdout
        (line,) = lines_of(out, str(trained))
        self.assertRegex(line, r" 2 .* tokens/s .* bytes/s$")

    def test_large_batches_are_limited(self):
        (row,) = self.bench("text-aft-simple-4x128", *sets(
            model__layers=1, model__width=16, model__length=256,
            train__batch_size=4096))  # fmt: skip
        self.assertEqual(8192 // 256, row["batch"])

    def test_batches_that_do_not_fit_into_memory(self):
        said = ["needs about ", " GB, and this machine has "]
        for name in ("text-aft-simple-4x128", "image-pixelcnn"):
            self.fails(1, [*said, "train.batch_size", "--batch"], "bench", name,
                       "--batch", 1000000)  # fmt: skip
        self.fails(1, ["1 of 1 system failed"], "compare", "imagenet-deit-tiny",
                   "--speed", "--batch", 1000000, "--out", self.work)  # fmt: skip
        report = (self.work / "compare.json").read_text()
        for words in (*said, "inference with --batch 1000000"):
            self.assertIn(words, report)
        self.assertNotIn("aft: ", report)

    def test_wrong_calls(self):
        self.fails(2, ["'text-aft-lokal'"], "bench", "text-aft-lokal")
        self.fails(1, ["model.width"], "bench", "text-aft-local-4x128", "--set",
                   "model.width=-1")  # fmt: skip
        torn = self.work / "torn"
        self.train_on_text(torn)
        for file in ("model.safetensors", "state/checkpoint.safetensors"):
            (torn / file).unlink()
        self.fails(1, [torn / "model.safetensors", "has no weights"], "bench", torn)


if __name__ == "__main__":
    main()
