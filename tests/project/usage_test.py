"""docs/usage.md names every command, option and configuration key of the
programs aft and aft-bench. usage_test.py PROJECT_DIR PROGRAM; aft-bench is in
the same directory."""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

USAGE = (Path(sys.argv[1]) / "docs/usage.md").read_text()
AFT = Path(sys.argv[2]).resolve()


def run(*arguments, program="aft"):
    return subprocess.run(
        [AFT.with_name(program), *arguments], stdout=subprocess.PIPE, text=True,
        check=True,
    ).stdout  # fmt: skip


def commands(text):
    """The names below "Subcommands:" in a help text."""
    part = text.split("Subcommands:")[1].split("\n\n")[0]
    return re.findall(r"^  ([a-z]+) ", part, re.M)


def keys(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from keys(value, prefix + name + ".")
        else:
            yield prefix + name


class TestUsage(unittest.TestCase):
    def test_commands_and_options(self):
        found = [(program, c) for program in ("aft", "aft-bench")
                 for c in commands(run("--help", program=program))]  # fmt: skip
        self.assertGreaterEqual(len(found), 9)
        chapters = re.split(r"\n## (?=`aft)", USAGE)[1:]
        named = {c: set() for c in chapters}
        for program, command in found:
            self.assertIn(f"`{program} {command}", USAGE)
            heading = "`aft-bench`" if program == "aft-bench" else f"`aft {command}`"
            chapter = next(c for c in chapters if heading in c.split("\n")[0])
            text = run(command, "--help", program=program)
            for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M):
                named[chapter].add(option)
                if option != "--help":
                    self.assertIn(f"`{option}", chapter, command)
        for chapter, options in named.items():  # and nothing that is not there
            for option in re.findall(r"`(--[\w-]+)", chapter):
                self.assertIn(option, options, chapter.split("\n")[0])

    def test_keys(self):
        for preset in ("text-aft-local-4x128", "image-aft-local-4x128",
                       "classify-aft-conv-4x96", "image-pixelcnn",
                       "image-pixelcnn++", "image-pixelsnail",
                       "classify-resnet-14x16"):
            info = json.loads(run("info", preset, "--json"))
            found = list(keys(info["config"]))
            self.assertGreater(len(found), 25 if "network" in
                               info["config"]["model"] else 30)  # fmt: skip
            for key in found:
                self.assertIn(f"`{key}`", USAGE)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
