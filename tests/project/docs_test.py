"""Runs every code block of a page of documentation, as a reader would: from top
to bottom, in one shell, in one directory that looks like a checkout.

    docs_test.py SOURCE_DIR BUILD_DIR PROGRAM LIBRARY COMPILER PAGE.md

Blocks of these languages run; a block without a language is output or a fragment:

    sh            as it stands. Commands use build/release/aft, or aft on the PATH.
                  `make` only prints what it would do, and `make quickstart` also
                  runs the script that it ends with.
    python, cpp,  saved to the file that the first line names (`# layer.py`,
    cmake         `// stream.cc`), which a later sh block must use; python without
                  a name runs at once

A block directly below `<!-- not run: REASON -->` is skipped: for what needs data or
a network that a test does not have. Data that the pages call the reader's own are
made here (READERS_DATA).

To be quick, `aft train` and `aft compare` train for STEPS steps, whatever the page
says (AFT_DOCS_STEPS overrides it), twice as many if they resume, and `aft generate`
writes at most 60 bytes.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

STEPS = int(os.environ.get("AFT_DOCS_STEPS", "12"))
RUN = {"sh", "python", "cpp", "cmake"}
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
FILE_NAME = re.compile(r"(?://|#) ([\w./]+\.\w+)\n")


# ---- the program, shortened --------------------------------------------------


def without(words, option):
    """The words without `option VALUE`, and the value or None."""
    if option not in words:
        return words, None
    at = words.index(option)
    return words[:at] + words[at + 2 :], words[at + 1]


def shortened(words):
    """A command line of aft that does the same on less."""
    command = words[0] if words else ""
    if command == "launch" and "--" in words:
        at = words.index("--") + 1
        return words[:at] + shortened(words[at:])
    if command == "train":
        words, _ = without(words, "--steps")
        # A run that is resumed needs a step that it has not done.
        return words + ["--steps", str(STEPS * (1 + words.count("--resume")))]
    if command == "generate":
        words, given = without(words, "--bytes")
        return words + ["--bytes", str(min(60, int(given or 60)))]
    if command == "compare" and "--speed" not in words:
        words, _ = without(without(words, "--seconds")[0], "--steps")
        return words + ["--steps", str(STEPS)]
    return words


# ---- the reader's data ---------------------------------------------------------


def png(side, colour):
    """A PNG of one RGB colour with a brighter square in it."""

    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    bright = bytes(min(255, c + 80) for c in colour)
    rows = b"".join(
        b"\0" + b"".join(
            bright if side // 4 < x < side // 2 < y + side // 4 < side else bytes(colour)
            for x in range(side)
        )
        for y in range(side)
    )  # fmt: skip
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">II", side, side) + bytes([8, 2, 0, 0, 0]))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def write_images(folder, count, colour):
    folder.mkdir(parents=True)
    for i in range(count):
        shade = tuple((c + 7 * i) % 200 for c in colour)
        (folder / f"{i:03}.png").write_bytes(png(40, shade))


def readers_data(work):
    """What the pages take for granted: a text, images, images by class."""
    words = "the cat sat on a mat and the dog ran after it all day long".split()
    text = " ".join(words[i * i % len(words)] for i in range(60000))
    (work / "book.txt").write_text(text)
    write_images(work / "holiday", 40, (180, 60, 20))
    for name, colour in (("daisy", (190, 190, 180)), ("rose", (180, 0, 30)),
                         ("tulip", (150, 120, 0))):  # fmt: skip
        write_images(work / "flowers" / name, 20, colour)
    (work / "photo.png").write_bytes(png(48, (180, 10, 40)))


# ---- the pages -----------------------------------------------------------------


class Page:
    def __init__(self, path):
        self.path, self.text = path, path.read_text()
        self.blocks, self.skipped = [], 0
        for match in FENCE.finditer(self.text):
            language, line = match["language"], self.text.count("\n", 0, match.start()) + 1
            if language not in RUN:
                continue
            if match["reason"]:
                self.skipped += 1
            else:
                self.blocks.append((line, language, match["text"]))

    def script(self):
        """The page as one script of bash."""
        out, files = ["set -euo pipefail", "trap 'echo \"in the block at line $LINE\"' ERR"], {}
        for line, language, text in self.blocks:
            out.append(f"LINE={line}")
            name = FILE_NAME.match(text)
            end = f"END_OF_BLOCK_{line}"
            if language == "sh":
                out.append(text)
                for used in files:
                    # hello/train.cc is built as hello/build/train.
                    files[used] |= used in text or Path(used).stem in text
            elif name:
                files[name[1]] = name[1].endswith("CMakeLists.txt")
                out.append(f"mkdir -p $(dirname {name[1]}); cat > {name[1]} <<'{end}'\n{text}{end}")
            else:
                assert language == "python", f"line {line}: the block must name its file"
                out.append(f"python3 - <<'{end}'\n{text}{end}")
        unused = [name for name, used in files.items() if not used]
        assert not unused, f"{self.path}: nothing uses {unused}"
        return "\n".join(out) + "\n"


def without_code(path):
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)


def anchors(path):
    """The names that GitHub gives to the headings of a page."""
    for heading in re.findall(r"^#+ (.*)$", without_code(path), re.M):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


class TestPage(unittest.TestCase):
    source = build = program = library = compiler = page = None

    def checkout(self, work):
        """Makes `work` look like a checkout that was built."""
        release = work / "build" / "release"
        release.mkdir(parents=True)
        for entry in self.build.iterdir():
            if entry.name != "aft":
                (release / entry.name).symlink_to(entry)
        tools = work / ".tools"
        tools.mkdir()
        make = f'{shutil.which("make")} -n -C "{self.source}" "$@"'
        quickstart = f'"{self.source}/scripts/quickstart.sh" build/release/aft'
        for path, command in (
            (release / "aft", f'exec {sys.executable} "{Path(__file__).resolve()}" --shortened "{self.program}" "$@"'),
            (tools / "python3", f'exec {sys.executable} "$@"'),
            (tools / "make", f'{make} || exit\n[ "$1" != quickstart ] || {quickstart}'),
        ):
            path.write_text(f"#!/bin/sh\n{command}\n")
            path.chmod(0o755)
        for name in ("python", "presets"):
            (work / name).symlink_to(self.source / name)
        return dict(
            os.environ,
            # ctest runs as many tests at once as there are cores.
            OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
            PATH=f"{release}:{tools}:{os.environ['PATH']}",
            AFT_LIBRARY=str(self.library),
            CXX=self.compiler,
            PYTHONDONTWRITEBYTECODE="1",
        )

    def test_blocks(self):
        page = Page(self.page)
        self.assertTrue(page.blocks, "the page has no code")
        self.assertLessEqual(page.skipped, 2, "most of a page must be tested")
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            environment = self.checkout(work)
            readers_data(work)
            script = work / ".tools" / "page.sh"
            script.write_text(page.script())
            done = subprocess.run(
                ["bash", script],
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",  # a model that has barely trained writes any bytes
            )
            self.assertEqual(done.returncode, 0, f"{self.page}:\n{done.stdout}")
            if "make quickstart" in "".join(text for _, _, text in page.blocks):
                self.assertIn("What it writes now", done.stdout)
                self.assertTrue((work / "runs/quickstart/model.safetensors").exists())

    def test_links(self):
        pages = [self.page]
        if self.page.name == "README.md":  # and what no other test reads
            pages += [*self.source.glob("*.md"), *self.source.glob("docs/*.md")]
        for page in pages:
            for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", without_code(page)):
                if "://" in target:
                    continue
                file = page.parent / target if target else page
                self.assertTrue(file.exists(), f"{page}: {target}")
                if anchor:
                    self.assertIn(anchor, list(anchors(file)), page)


class TestShortened(unittest.TestCase):
    def test_shortened(self):
        steps, more = str(STEPS), str(2 * STEPS)
        for line, expected in (
            ("train p --steps 900 --out d", f"train p --out d --steps {steps}"),
            ("train --resume d", f"train --resume d --steps {more}"),
            ("launch -n 2 -- train p", f"launch -n 2 -- train p --steps {steps}"),
            ("generate d --bytes 30", "generate d --bytes 30"),
            ("generate d", "generate d --bytes 60"),
            ("eval d", "eval d"),
        ):
            self.assertEqual(shortened(line.split()), expected.split())


if __name__ == "__main__":
    if sys.argv[1] == "--shortened":
        os.execv(sys.argv[2], [sys.argv[2], *shortened(sys.argv[3:])])
    TestPage.source, TestPage.build, TestPage.program, TestPage.library = (
        Path(a).resolve() for a in sys.argv[1:5]
    )
    TestPage.compiler = sys.argv[5]
    TestPage.page = TestPage.source / sys.argv[6]
    unittest.main(argv=sys.argv[:1])
