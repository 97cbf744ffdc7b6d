"""Where `import aft` finds libaft.so, and the error if it finds none. Each test
runs in a new interpreter."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PYTHON))

import aft

LIBRARY = aft.library_path

PROGRAM = """
import aft, torch
x = torch.randn(1, 3, 2)
assert aft.simple(x, x, x).shape == x.shape
print(aft.library_path)
"""


@unittest.skipIf(LIBRARY is None, "the operators were already registered")
class TestImport(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name).resolve()

    def python(self, path, program=PROGRAM, library=None):
        """Runs the program with the package below path."""
        environment = dict(os.environ, PYTHONPATH=str(path))
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment.pop("AFT_LIBRARY", None)
        if library is not None:
            environment["AFT_LIBRARY"] = str(library)
        return subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            cwd=self.root,
            capture_output=True,
            text=True,
        )

    def package(self, *folders):
        """A copy of the package in a separate directory."""
        path = self.root.joinpath(*folders)
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(PYTHON / "aft", path / "aft", ignore=skip)
        return path

    def check_found(self, result, where):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.strip(), str(where))

    def check_not_found(self, result, *words):
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("ImportError: aft: ", result.stderr)
        for word in words:
            self.assertIn(str(word), result.stderr)

    def link(self, *folders):
        place = self.root.joinpath(*folders, "libaft.so")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(LIBRARY)
        return place

    def test_named_by_the_environment(self):
        path = self.package("anywhere")
        place = self.link("elsewhere")
        self.link("anywhere", "aft")  # the named file has precedence
        self.check_found(self.python(path, library=place), place)

    def test_beside_the_package(self):
        path = self.package("anywhere")
        place = self.link("anywhere", "aft")
        self.check_found(self.python(path), place)

    def test_in_a_prefix(self):
        path = self.package("lib", "python3", "dist-packages")
        place = self.link("lib")
        self.check_found(self.python(path), place)

    def test_in_a_checkout(self):
        path = self.package("checkout", "python")
        place = self.link("checkout", "build", "release")
        self.check_found(self.python(path), place)

    def test_nowhere(self):
        path = self.package("lib", "python3", "dist-packages")
        self.check_not_found(
            self.python(path),
            "libaft.so not found",
            path / "aft" / "libaft.so",
            self.root / "lib" / "libaft.so",
            "AFT_LIBRARY",
        )

    def test_a_named_file_that_does_not_exist(self):
        path = self.package("anywhere")
        self.link("anywhere", "aft")  # no fallback
        place = self.root / "missing.so"
        self.check_not_found(self.python(path, library=place), place)

    def test_a_file_that_is_not_a_library(self):
        path = self.package("anywhere")
        place = self.root / "text.so"
        place.write_text("not a library")
        self.check_not_found(
            self.python(path, library=place), "cannot load", place, "torch"
        )

    def test_operators_already_registered(self):
        path = self.package("anywhere")
        program = f"import torch\ntorch.ops.load_library({LIBRARY!r})" + PROGRAM
        self.check_found(self.python(path, program), None)


if __name__ == "__main__":
    unittest.main()
