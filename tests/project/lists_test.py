"""Checks the build's lists of files: without globs, a source file or test that no
list names is silently not built or not run. lists_test.py PROJECT_DIR.
"""

import os
import re
import sys
import tempfile
import unittest

TOP = "CMakeLists.txt"
TESTS = "tests/CMakeLists.txt"

# (pattern of files, entry that names such a file, list that must contain it).
# The groups of the pattern fill the entry.
RULES = (
    (r"((?:aft|cli|bench)/.+\.cc)", r"{0}", TOP),
    (r"(python/aft/.+\.py)", r"{0}", TOP),
    (r"tests/(\w+)/(\w+_test)\.cc", r"aft_test({0} {1}", TESTS),
    (r"tests/fuzz/((?!replay\.)\w+)\.cc", r"aft_fuzz({0}", TESTS),
    (r"tests/(\w+)/(\w+_test)\.py", r"aft_script_test({0} {1}", TESTS),
    (r"python/tests/(test_\w+)\.py", r"aft_python_test({0})", TESTS),
)


def scan(root):
    """(number of files that a rule covers, list of those not named)."""
    lists = {}
    for name in (TOP, TESTS):
        with open(os.path.join(root, name), encoding="utf-8") as f:
            lists[name] = re.sub(r"#.*", "", f.read())
    count, forgotten = 0, []
    for top in ("aft", "bench", "cli", "python", "tests"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), root)
                path = path.replace(os.sep, "/")
                for files, entry, where in RULES:
                    match = re.fullmatch(files, path)
                    if not match:
                        continue
                    count += 1
                    entry = entry.format(*match.groups())
                    # Not as part of a longer name.
                    if not re.search(
                        r"(?<![\w./])" + re.escape(entry) + r"(?![\w.])",
                        lists[where],
                    ):
                        forgotten.append(f"{path}: {where} must have {entry}")
    return count, forgotten


class Lists(unittest.TestCase):
    project = None

    def test_project(self):
        count, forgotten = scan(self.project)
        self.assertGreater(count, 20, f"too few files in {self.project}")
        if forgotten:
            self.fail("\n" + "\n".join(forgotten))

    def test_finds_what_was_forgotten(self):
        files = {
            TOP: "aft/a/named.cc python/aft/nn.py\n# aft/a/comment.cc\n",
            TESTS: "aft_test(a one_test aft)\naft_script_test(a two_test x)\n"
            "aft_python_test(test_three)\naft_fuzz(four aft_io)\n",
            "aft/a/named.cc": "",
            "aft/a/comment.cc": "",
            "aft/a/name.cc": "",
            "cli/new.cc": "",
            "python/aft/nn.py": "",
            "python/aft/new.py": "",
            "python/tests/test_three.py": "",
            "python/tests/test_new.py": "",
            "tests/a/one_test.cc": "",
            "tests/b/one_test.cc": "",
            "tests/a/two_test.py": "",
            "tests/a/new_test.py": "",
            "tests/a/helper.h": "",
            "tests/fuzz/four.cc": "",
            "tests/fuzz/new.cc": "",
            "tests/fuzz/replay.cc": "",
        }
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                full = os.path.join(root, name)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as f:
                    f.write(text)
            _, forgotten = scan(root)
        self.assertEqual(
            [
                "aft/a/comment.cc",
                "aft/a/name.cc",
                "cli/new.cc",
                "python/aft/new.py",
                "python/tests/test_new.py",
                "tests/a/new_test.py",
                "tests/b/one_test.cc",
                "tests/fuzz/new.cc",
            ],
            sorted(line.split(":")[0] for line in forgotten),
        )


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(f"usage: {sys.argv[0]} PROJECT_DIR")
    Lists.project = sys.argv.pop()
    unittest.main()
