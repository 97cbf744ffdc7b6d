"""The image commands as a user meets them: training on pictures of every kind,
killed and resumed; likelihoods; sheets of samples and completions, read pixel by
pixel; data that are not what they should be. Argument: the program."""

import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from pathlib import Path

AFT = str(Path(sys.argv[1]).resolve())
PRESET = "image-aft-local-4x128"
HEIGHT, WIDTH = 4, 6  # of the pictures of SMALL
SMALL = [
    "--set", "model.layers=1", "--set", "model.width=16",
    "--set", "model.window=8", "--set", "model.rank=4",
    "--set", f"data.height={HEIGHT}", "--set", f"data.width={WIDTH}",
    "--set", "data.valid_images=10", "--set", "train.batch=2",
    "--set", "train.validate=10", "--set", "train.save=3",
    "--set", "train.report=5", "--set", "train.steps=30",
]  # fmt: skip
LONGER = [
    *SMALL, "--set", "train.steps=500", "--set", "train.save=10",
    "--set", "train.validate=100",
]  # fmt: skip
# Enough to know one picture by heart.
BY_HEART = [
    "--set", "data.flip=false", "--set", "data.shift=0",
    "--set", "train.rate=0.03", "--set", "train.warmup=5",
    "--set", "train.decay=0", "--set", "train.validate=150",
    "--set", "train.steps=150",
]  # fmt: skip
RECORD, RECORDS = 3073, 10000
SIGNATURE = b"\x89PNG\r\n\x1a\n"
WHITE, GREY = b"\xff" * 3, b"\x80" * 3
RANDOM = random.Random(1)


def aft(*arguments, **options):
    # Not as text: that would turn the carriage returns of a progress line into
    # new lines, and they are looked for below.
    done = subprocess.run([AFT, *map(str, arguments)], capture_output=True, **options)
    done.stdout = done.stdout.decode("utf-8", "replace")
    done.stderr = done.stderr.decode("utf-8", "replace")
    return done


# ---- Pictures: rows from the top, each the bytes of its pixels --------------


def picture(height=HEIGHT, width=WIDTH):
    return [RANDOM.randbytes(3 * width) for _ in range(height)]


def png(rows):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    size = struct.pack(">II", len(rows[0]) // 3, len(rows))
    return (
        SIGNATURE
        + chunk(b"IHDR", size + bytes([8, 2, 0, 0, 0]))
        + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
        + chunk(b"IEND", b"")
    )


def jpeg(colour):
    """8 x 8 pixels of one colour, exactly: channels named R, G, B, quantised by
    1, of each block only the mean."""

    def part(marker, data):
        return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data

    def table(kind, length, symbols):
        counts = [len(symbols) if i + 1 == length else 0 for i in range(16)]
        return part(0xC4, bytes([kind, *counts, *symbols]))

    bits = ""
    for value in colour:
        mean = 8 * (value - 128)
        size = abs(mean).bit_length()
        bits += f"{size:04b}"
        if size:
            bits += f"{mean if mean > 0 else mean + (1 << size) - 1:0{size}b}"
        bits += "0"  # the end of the block
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    channels = b"".join(bytes([c, 0x11, 0]) for c in b"RGB")
    scan = b"".join(bytes([c, 0]) for c in b"RGB")
    return (
        b"\xff\xd8"
        + part(0xDB, b"\0" + b"\1" * 64)
        + part(0xC0, bytes([8, 0, 8, 0, 8, 3]) + channels)
        + table(0x00, 4, range(12))
        + table(0x10, 1, [0])
        + part(0xDA, b"\3" + scan + b"\0\x3f\0")
        + data
        + b"\xff\xd9"
    )


def read_png(path):
    """The rows of a PNG of 8-bit RGB without interlacing."""
    data = Path(path).read_bytes()
    assert data[:8] == SIGNATURE, data[:8]
    at, kinds, packed = 8, [], b""
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        assert len(body) == length
        (sum_,) = struct.unpack_from(">I", data, at + 8 + length)
        assert sum_ == zlib.crc32(kind + body), kind
        kinds.append(kind)
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", body)
            assert rest == [8, 2, 0, 0, 0], rest
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    assert kinds[0] == b"IHDR" and kinds[-1] == b"IEND", kinds
    raw, stride = zlib.decompress(packed), 3 * width
    assert len(raw) == height * (1 + stride), (len(raw), height, width)
    rows, above = [], bytes(stride)
    for y in range(height):
        kind, *line = raw[y * (1 + stride) : (y + 1) * (1 + stride)]
        if kind == 2:  # as below, but fast
            line = [(x + b) & 255 for x, b in zip(line, above)]
        for i in range(stride if kind in (1, 3, 4) else 0):
            b = above[i]
            a, c = (line[i - 3], above[i - 3]) if i > 2 else (0, 0)
            if kind == 4:
                p = a + b - c
                near = min((a, b, c), key=lambda x: abs(p - x))  # the first of equals
            else:
                near = a if kind == 1 else (a + b) // 2
            line[i] = (line[i] + near) & 255
        assert kind <= 4, kind
        rows.append(bytes(line))
        above = line
    return rows


def draw_sheet(pictures, columns, scale):
    """What a sheet is: pictures in rows of `columns`, pixels of scale x scale,
    half a pixel of white around each."""
    gap = max(scale // 2, 1)
    height, width = len(pictures[0]), len(pictures[0][0]) // 3
    line = gap * WHITE + columns * (width * scale + gap) * WHITE
    out = [line] * gap
    for first in range(0, len(pictures), columns):
        for y in range(height):
            row = gap * WHITE
            for p in pictures[first : first + columns]:
                pixels = (p[y][3 * x : 3 * x + 3] for x in range(width))
                row += b"".join(scale * pixel for pixel in pixels) + gap * WHITE
            out += [row.ljust(len(line), b"\xff")] * scale
        out += [line] * gap
    return out


def lines_of(text, words):
    return [line for line in text.splitlines() if words in line]


class TestImages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.shared = Path(holder.name)
        # A model of the built-in pictures, and one that knows one picture.
        cls.model, cls.expert = cls.shared / "model", cls.shared / "expert"
        cls.known = picture()
        cls.folder(cls.shared / "same", [cls.known] * 12)
        cls.trained = aft("train", PRESET, "--out", cls.model, *SMALL)
        learned = aft("train", PRESET, "--data", cls.shared / "same",
                      "--out", cls.expert, *SMALL, *BY_HEART)  # fmt: skip
        for done in (cls.trained, learned):
            if done.returncode != 0:
                raise RuntimeError(done.stderr)

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.work = Path(holder.name)
        self.sheet = self.work / "sheet.png"

    def succeed(self, *arguments, **options):
        done = aft(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Not a terminal: plain lines.
        self.assertNotIn("\r", done.stderr)
        self.assertNotIn("\033", done.stderr)
        return done

    def fails(self, code, words, *arguments, **options):
        done = aft(*arguments, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)
        self.assertTrue(done.stderr.splitlines()[-1].startswith("aft: "))

    @staticmethod
    def folder(path, pictures):
        path.mkdir(parents=True)
        for i, rows in enumerate(pictures):
            (path / f"{i:03}.png").write_bytes(png(rows))

    def read_sheet(self, count, columns, scale=4, height=HEIGHT, width=WIDTH):
        """The pictures on self.sheet, which holds nothing else."""
        rows, gap = read_png(self.sheet), max(scale // 2, 1)
        self.assertEqual(len(rows), -(-count // columns) * (height * scale + gap) + gap)
        self.assertEqual(len(rows[0]), 3 * (columns * (width * scale + gap) + gap))
        out = []
        for i in range(count):
            top = gap + i // columns * (height * scale + gap)
            left = gap + i % columns * (width * scale + gap)
            at = [3 * (left + x * scale) for x in range(width)]
            out.append([b"".join(rows[top + y * scale][x : x + 3] for x in at)
                        for y in range(height)])  # fmt: skip
        good = rows == draw_sheet(out, columns, scale)  # too large for a diff
        self.assertTrue(good, "not pixels of equal squares on white")
        return out

    def sample(self, *arguments):
        self.succeed("sample", *arguments, "--out", self.sheet)
        return self.sheet.read_bytes()

    def complete(self, data, keep, count, times, *arguments):
        """Runs, and returns the masked pictures and the rows of completions."""
        self.succeed("complete", self.model, "--data", data, "--out", self.sheet,
                     "--keep", keep, "--count", count, "--times", times,
                     *arguments)  # fmt: skip
        all_ = self.read_sheet(count * (1 + times), count)
        return [all_[i : i + count] for i in range(0, len(all_), count)]

    # ---- Training ------------------------------------------------------------

    def disturb(self, out, arguments, number, times):
        """A run that gets the signal up to `times` times, each time somewhere
        after a new checkpoint, and goes on to its end. What it said each time."""

        def saved():
            checkpoint = out / "state/checkpoint.safetensors"
            return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

        told, code = [], -number if number == signal.SIGKILL else 0
        while True:
            before, deadline = saved(), time.monotonic() + 60
            with subprocess.Popen(
                [AFT, *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            ) as run:  # fmt: skip
                while len(told) < times and run.poll() is None:
                    self.assertLess(time.monotonic(), deadline)
                    if saved() != before:
                        time.sleep(RANDOM.uniform(0, 0.05))
                        run.send_signal(number)
                        break
                    time.sleep(0.005)
                told.append(run.communicate(timeout=60)[0])
            if "done" in told[-1]:
                self.assertEqual(run.returncode, 0)
                self.assertGreaterEqual(len(told), 2)
                return told
            self.assertEqual(run.returncode, code)
            arguments = ["train", "--resume", out]

    def same_runs(self, one, other):
        for name in ("model.safetensors", "state/checkpoint.safetensors"):
            self.assertEqual(
                (one / name).read_bytes(), (other / name).read_bytes(), name
            )

    def test_killed_and_resumed_is_the_same_to_the_bit(self):
        whole, torn = self.work / "whole", self.work / "torn"
        words = LONGER
        self.succeed("train", PRESET, "--out", whole, *words)
        self.disturb(
            torn, ["train", PRESET, "--out", torn, *words], signal.SIGKILL, 2
        )
        self.same_runs(whole, torn)

    def test_interrupted_and_resumed_is_the_same_to_the_bit(self):
        data = self.work / "data"
        self.folder(data, [picture() for _ in range(30)])
        whole, torn = self.work / "whole", self.work / "torn"
        words = [*LONGER, "--data", data]
        self.succeed("train", PRESET, "--out", whole, *words)
        told = self.disturb(
            torn, ["train", PRESET, "--out", torn, *words], signal.SIGINT, 1
        )
        for stopped in told[:-1]:
            self.assertIn(f"aft train --resume {torn}", stopped)
        self.assertIn(f"aft sample {torn}", told[-1])
        self.same_runs(whole, torn)

    def test_what_training_says_and_leaves(self):
        self.assertIn(f"`aft sample {self.model}`", self.trained.stdout)
        self.assertIn(f"`aft complete {self.model}`", self.trained.stdout)
        self.assertNotIn("\r", self.trained.stderr)
        self.assertNotIn("\033", self.trained.stderr)
        metrics = [
            json.loads(line)
            for line in (self.model / "metrics.jsonl").read_text().splitlines()
        ]
        bits = metrics[-1]["loss"] / math.log(2)
        (line,) = lines_of(self.trained.stderr, "step 30/30 ")
        self.assertIn(f"  bits/dim {bits:.4f}  ", line)
        best = min(m["validation"] for m in metrics if "validation" in m)
        self.assertRegex(line, r"validation bits/dim \d")
        self.assertIn(f"(best {best / math.log(2):.4f})", line)
        self.assertNotIn("bpc", self.trained.stderr)
        config = json.loads((self.model / "config.json").read_text())
        self.assertEqual("image", config["task"])
        self.assertEqual(3 * HEIGHT * WIDTH, config["model"]["length"])
        self.assertTrue((self.model / "curve.svg").read_text().startswith("<?xml"))
        # The model that is left is the one that was validated.
        words = ["eval", self.model, "--split", "valid"]
        valid = json.loads(self.succeed(*words, "--json").stdout)
        self.assertEqual(10, valid["images"])
        self.assertAlmostEqual(best, valid["nats"], 5)
        self.assertAlmostEqual(best / math.log(2), valid["bits_per_dim"], 4)

    def test_learns_a_picture_by_heart(self):
        result = json.loads(self.succeed("eval", self.expert, "--json").stdout)
        size = [result[key] for key in ("images", "height", "width")]
        self.assertEqual([1, HEIGHT, WIDTH], size)
        self.assertLess(result["bits_per_dim"], 0.1)
        self.sample(self.expert, "--temperature", 0, "--count", 2)
        self.assertEqual([self.known] * 2, self.read_sheet(2, 2))
        # Others, it has never seen.
        self.folder(self.work / "other", [picture() for _ in range(20)])
        said = self.succeed(
            "eval", self.expert, "--data", self.work / "other", "--images", 1
        ).stdout
        self.assertRegex(said, r"bits/dim \d+\.\d{4} on test, 1 images of 4x6")
        self.assertGreater(float(said.split("bits/dim ")[1].split()[0]), 8)

    def test_a_run_keeps_its_data_and_size(self):
        data, out = self.work / "data", self.work / "run"
        pictures = [picture() for _ in range(20)]
        self.folder(data, pictures)
        self.succeed("train", PRESET, "--data", data, "--out", out, *SMALL)
        more = ["train", "--resume", out, "--steps", 40]
        for sets in (["height=6", "width=4"], ["height=8"]):
            key, value = sets[0].split("=")
            words = [w for s in sets for w in ("--set", f"data.{s}")]
            with self.subTest(sets=sets):
                self.fails(1, [f"data.{key}", f"cannot become {value}"], *more, *words)
        for changed in (picture(1) + pictures[3][1:], picture()):
            (data / "003.png").write_bytes(png(changed))
            with self.subTest("one row" if changed[1] == pictures[3][1] else "all"):
                self.fails(1, [data, "data.fingerprint"], *more)
        self.assertIn("changed", self.succeed("eval", out).stderr)
        shutil.rmtree(data)
        self.fails(1, [data, "got nothing"], *more)

    # ---- Sheets --------------------------------------------------------------

    def test_samples(self):
        first = self.sample(self.model)
        many = self.read_sheet(16, 4)
        self.assertEqual(16, len({tuple(p) for p in many}))
        self.assertEqual(first, self.sample(self.model, "--seed", 1))
        self.assertNotEqual(first, self.sample(self.model, "--seed", 2))
        others = self.read_sheet(16, 4)
        self.assertFalse([p for p in others if p in many])
        # A picture is the same whatever is drawn with it.
        for batch, count, columns, scale in ((2, 5, 2, 3), (1, 3, 9, 1)):
            self.sample(self.model, "--batch", batch, "--count", count,
                        "--columns", columns, "--scale", scale)  # fmt: skip
            columns = min(columns, count)
            self.assertEqual(many[:count], self.read_sheet(count, columns, scale))

    def test_completions(self):
        data = self.work / "data"
        train, test = ([picture() for _ in range(n)] for n in (3, 5))
        self.folder(data / "train", train)
        self.folder(data / "test", test)
        grey = WIDTH * GREY

        def check(pictures, kept, masked, *completed):
            for i, p in enumerate(pictures):
                self.assertEqual(p[:kept] + (HEIGHT - kept) * [grey], masked[i])
                for row in completed:
                    self.assertEqual(p[:kept], row[i][:kept])
                    self.assertNotEqual(p[kept:], row[i][kept:])

        top, one, two = self.complete(data, 0.5, 3, 2, "--first", 2, "--batch", 4)
        check(test[2:], 2, top, one, two)
        for a, b in zip(one, two):
            self.assertNotEqual(a, b)
        # Rows are whole, and the nearest number of them.
        check(test, 0, *self.complete(data, 0, 5, 1))
        check(train, 3, *self.complete(data, 0.7, 3, 1, "--split", "train"))
        self.assertEqual([test[:4]] * 3, self.complete(data, 1, 4, 2))
        # The likeliest, whatever it is drawn with: 0 1 2, 3 4 0, 1 2 3, 4.
        top, one, two = self.complete(data, 0.5, 5, 2, "--temperature", 0, "--batch", 3)
        check(test, 2, top, one)
        self.assertEqual(one, two)
        # What the model knows follows from what is given.
        self.succeed("complete", self.expert, "--out", self.sheet, "--count", 1,
                     "--keep", 0.25, "--times", 1)  # fmt: skip
        self.assertEqual(self.known, self.read_sheet(2, 1)[1])
        words = ["complete", self.model, "--data", data, "--out", self.work / "none"]
        self.fails(1, [data, "'test' has 5", "--first", "--count"],
                   *words, "--count", 2, "--first", 4)  # fmt: skip
        self.assertFalse((self.work / "none").exists())

    def test_progress_on_a_terminal(self):
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        run = subprocess.Popen(
            [AFT, "sample", self.model, "--out", self.sheet],
            stdout=subprocess.DEVNULL, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        seen = ""
        try:
            while True:  # ends with an error, when nobody can write any more
                seen += os.read(ours, 4096).decode()
        except OSError:
            self.assertEqual(run.wait(timeout=60), 0, seen)
        self.assertIn(f"/{16 * 3 * HEIGHT * WIDTH} sub-pixels", seen)
        self.assertIn("\r", seen)
        self.assertTrue(seen.endswith("\r\033[K"), seen)  # nothing is left of it

    # ---- Data ----------------------------------------------------------------

    def cifar(self, name, records=RECORDS):
        """A batch of noise. Its first and last pictures, two each."""
        raw = bytearray(RANDOM.randbytes(records * RECORD))
        raw[::RECORD] = bytes(i % 10 for i in range(records))
        name.parent.mkdir(exist_ok=True)
        name.write_bytes(raw)
        out = []
        for i in (0, 1, records - 2, records - 1):
            planes = raw[i * RECORD + 1 : (i + 1) * RECORD]
            pixels = zip(planes[:1024], planes[1024:2048], planes[2048:])
            flat = bytes(value for pixel in pixels for value in pixel)
            out.append([flat[96 * y : 96 * y + 96] for y in range(32)])
        return out

    def test_cifar(self):
        data, out = self.work / "cifar", self.work / "run"
        train = self.cifar(data / "data_batch_2.bin")
        self.cifar(data / "data_batch_5.bin")
        test = self.cifar(data / "test_batch.bin")
        described = json.loads(
            self.succeed("data", data, "--json", "--sheet", self.sheet).stdout
        )
        self.assertEqual(32, described["size"])
        self.assertEqual(20000, described["splits"]["train"]["images"])
        self.assertEqual(10000, described["splits"]["test"]["images"])
        self.assertEqual(train[:2], self.read_sheet(64, 8, 4, 32, 32)[:2])
        size = ["--set", "data.height=32", "--set", "data.width=32"]
        self.succeed("train", PRESET, "--data", data, "--out", out, *SMALL, *size,
                     "--set", "data.valid_images=2", "--steps", 1)  # fmt: skip
        self.succeed("complete", out, "--out", self.sheet, "--count", 2, "--times", 1,
                     "--first", 9998, "--scale", 1)  # fmt: skip
        shown = self.read_sheet(4, 2, 1, 32, 32)
        self.assertEqual([p[:16] + 16 * [32 * GREY] for p in test[2:]], shown[:2])
        self.assertEqual([p[:16] for p in test[2:]], [p[:16] for p in shown[2:]])
        words = ["eval", out, "--images", 3, "--split", "train"]
        answer = json.loads(self.succeed(*words, "--json").stdout)
        self.assertEqual(3, answer["images"])
        self.assertLess(abs(answer["bits_per_dim"] - 8), 0.1)

    def test_bad_cifar(self):
        data = self.work / "cifar"
        self.cifar(data / "data_batch_1.bin")
        good = (data / "data_batch_1.bin").read_bytes()
        wrong = bytearray(good)
        wrong[777 * RECORD] = 10
        for name, content, words in (
            ("data_batch_3.bin", good[:-1], ["30730000", "30729999"]),
            ("data_batch_3.bin", wrong, ["record 777", "label", "got 10"]),
            ("test_batch.bin", good[:-RECORD], ["30730000", "30726927"]),
        ):
            (data / name).write_bytes(content)
            self.fails(1, [data / name, *words], "data", data)
            (data / name).unlink()
        bad = self.work / "bad"
        self.fails(1, [data, "'test'"], "eval", self.model, "--data", data)
        (data / "data_batch_1.bin").rename(data / "test_batch.bin")
        self.fails(1, [data, "got 0 and 0"],
                   "train", PRESET, "--data", data, "--out", bad, *SMALL)  # fmt: skip
        self.assertFalse(bad.exists())

    def test_folders(self):
        data = self.work / "data"
        kept, wide = [picture(5, 5) for _ in range(13)], picture(5, 10)
        self.folder(data, kept[:2])
        (data / "002.PNG").write_bytes(png(wide))  # its centre is cut out
        (data / "003.JPEG").write_bytes(jpeg((200, 17, 96)))
        (data / "004.jpg").write_bytes(png(kept[2]))  # what is in it counts
        (data / "notes.txt").write_text("no picture")
        self.folder(data / "below" / "deep", kept[3:])  # before 'notes', after digits
        flat = [5 * bytes((200, 17, 96))] * 5
        files = [*kept[:2], [row[6:21] for row in wide], flat, kept[2], *kept[3:]]
        words = ["data", data, "--size", 5, "--sheet", self.sheet]
        described = json.loads(self.succeed(*words, "--json").stdout)
        self.assertEqual([5, 14, 1], [
            described["size"], *(described["splits"][s]["images"]
                                 for s in ("train", "test"))])  # fmt: skip
        # Each tenth is for the test; the sheet shows the others first.
        self.assertEqual(files[:9] + files[10:] + files[9:10],
                         self.read_sheet(15, 8, 4, 5, 5))  # fmt: skip
        # Folders that say what they are for.
        data = self.work / "parts"
        self.folder(data / "train", kept[:3])
        self.folder(data / "val", kept[3:5])
        listed = self.succeed("data", data, "--size", 5, "--sheet", self.sheet).stdout
        self.assertRegex(listed, r"5x5(?s:.)*train +3 (?s:.)*test +2 ")
        self.assertEqual(kept[:5], self.read_sheet(5, 5, 4, 5, 5))

    def test_bad_folders(self):
        data, bad = self.work / "data", self.work / "bad"
        self.folder(data, [picture() for _ in range(5)])
        good = png(picture())
        broken = bytearray(good)
        broken[len(good) // 2] ^= 4
        words = ["train", PRESET, "--out", bad, *SMALL, "--data"]
        for name, content, expected in (
            ("x.png", b"Dear diary", ["PNG or JPEG", "Dear dia"]),
            ("x.jpg", b"", ["PNG or JPEG", "empty"]),
            ("broken.png", broken, ["good PNG"]),
            ("cut.jpeg", jpeg((1, 2, 3))[:-4], ["good JPEG"]),
        ):
            (data / name).write_bytes(content)
            self.fails(1, [data / name, *expected], *words, data)
            (data / name).unlink()
        self.fails(1, [data, "got 5 and 0"], *words, data)
        self.fails(1, [data / "000.png", "folder", "a file"], *words, data / "000.png")
        self.fails(1, ["/nowhere/pictures", "folder", "nothing"],
                   *words, "/nowhere/pictures")  # fmt: skip
        empty = self.work / "empty"
        empty.mkdir()
        self.fails(1, [empty, "PNG or JPEG", "none"], *words, empty)
        self.assertFalse(bad.exists())
        # A picture that cannot be read is not passed over.
        (data / "x.png").symlink_to("/nowhere/x.png")
        with self.subTest("a link to nothing"):
            self.fails(1, [data / "x.png"], "data", data)

    def test_built_in_and_known_data(self):
        words = ["data", "built-in-pictures", "--size"]
        described = json.loads(
            self.succeed(*words, 8, "--json", "--sheet", self.sheet).stdout
        )
        self.assertEqual([8, 2000, 200], [
            described["size"], *(described["splits"][s]["images"]
                                 for s in ("train", "test"))])  # fmt: skip
        self.assertEqual(64, len({tuple(p) for p in self.read_sheet(64, 8, 4, 8, 8)}))
        self.fails(1, ["/nowhere/x.png"], *words, 1, "--sheet", "/nowhere/x.png")
        name = "cifar-10-batches-bin"
        self.assertIn(name, self.succeed("data").stdout)
        hint = f"aft data {name} --download"
        self.fails(1, [hint], "data", name, cwd=self.work)
        self.fails(1, [hint], "train", "cifar10-aft-local-24x256", cwd=self.work)
        archive = self.work / "archive"
        archive.write_bytes(b"x" * 100)
        here = self.work / "here"
        here.mkdir()
        self.fails(1, ["expected 170052171 bytes, got 100"], "data", name,
                   "--download", "--out", here, "--from", archive.as_uri())  # fmt: skip
        self.assertEqual([], os.listdir(here))

    # ---- The rest ------------------------------------------------------------

    def test_info_and_presets(self):
        for name, sets, mixer in (
            # q, k and v: 3 (d^2 + d); biases: 2 T rank, dense T^2. The paper has
            # 0.6 and 9.6 million.
            ("cifar10-aft-local-24x256", [], 590592),
            ("cifar10-aft-local-24x256-dense", ["--set", "model.layers=1"], 9634560),
        ):
            info = json.loads(self.succeed("info", name, "--json", *sets).stdout)
            self.assertEqual(mixer, info["parameters_per_mixer"])
            self.assertEqual(3072, info["config"]["model"]["length"])
        listed = self.succeed("presets").stdout
        for name, figures in (
            ("cifar10-aft-local-24x256", "2.75 2.74"),
            ("cifar10-aft-simple-24x256", ""),
            ("cifar10-transformer-12x512", ""),
            (PRESET, "- -"), ("image-aft-full-4x128", "- -"),
            ("image-aft-simple-4x128", "- -"), ("image-aft-conv-4x128", "- -"),
            ("image-transformer-4x128", "- -"),
        ):  # fmt: skip
            (line,) = lines_of(listed, name + " ")
            self.assertRegex(" ".join(line.split()), r"bits/dim \S+ \S+$")
            self.assertTrue(" ".join(line.split()).endswith(figures), line)
        self.assertEqual(len(lines_of(listed, "bits/dim")),
                         sum(line.startswith(("cifar10-", "image-"))
                             for line in listed.splitlines()))  # fmt: skip

    def test_wrong_calls(self):
        text = self.work / "text"
        self.succeed("train", "text-aft-local-4x128", "--out", text, "--steps", 1,
                     "--set", "model.layers=1", "--set", "model.width=16",
                     "--set", "model.length=32", "--set", "train.batch=2",
                     "--set", "data.valid_bytes=2000")  # fmt: skip
        self.fails(1, [self.model, "language", "image", "aft sample"],
                   "generate", self.model)  # fmt: skip
        self.fails(1, [text, "image", "language", "aft generate"], "sample", text)
        self.fails(2, ["--images", "--bytes"], "eval", text, "--images", 5)
        for option in ("--bytes", "--stride"):
            self.fails(2, [option, "--images"], "eval", self.model, option, 5)
        for command, out in (
            ("sample", "/nowhere/x.png"), ("sample", self.work),
            ("complete", "/proc/x.png"),
        ):  # fmt: skip
            self.fails(1, [f"{out}: cannot be written"], command, self.model,
                       "--count", 1, "--out", out)  # fmt: skip
        self.assertEqual(["text"], os.listdir(self.work))
        # More than a picture can have: 2 x 289 places of 64 times 4 x 6 pixels.
        self.fails(1, ["67108864 pixels"], "sample", self.model,
                   "--count", 290, "--columns", 289, "--scale", 64,
                   "--out", self.sheet)  # fmt: skip
        for option in ("--keep=nan", "--temperature=nan", "--top-p=nan"):
            with self.subTest(option):
                self.fails(2, [option.split("=")[0]], "complete", self.model, option,
                           "--out", self.sheet)  # fmt: skip
        for key, word in (
            ("model.length=100", "= 72"),
            ("data.valid_images=0", "data.valid_images"),
        ):
            self.fails(1, [word], "train", PRESET, "--out", self.work / "bad",
                       *SMALL, "--set", key)  # fmt: skip
        self.assertFalse((self.work / "bad").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
