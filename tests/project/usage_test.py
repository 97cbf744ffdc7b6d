"""docs/usage.md names every command, option and configuration key that the
program has. usage_test.py PROJECT_DIR PROGRAM."""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

USAGE = (Path(sys.argv[1]) / "docs/usage.md").read_text()
AFT = str(Path(sys.argv[2]).resolve())


def run(*arguments):
    return subprocess.run(
        [AFT, *arguments], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


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
        found = [(c,) for c in commands(run("--help")) if c != "bench"]
        found += [("bench", c) for c in commands(run("bench", "--help"))]
        self.assertGreaterEqual(len(found), 9)
        chapters = USAGE.split("\n## `aft ")[1:]
        named = {c: set() for c in chapters}
        for command in found:
            self.assertIn("`aft " + " ".join(command), USAGE)
            chapter = next(c for c in chapters
                           if re.search(rf"\b{command[0]}`", c.split("\n")[0]))
            text = run(*command, "--help")
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
