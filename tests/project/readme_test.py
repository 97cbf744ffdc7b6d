"""Runs what README.md tells its readers to run: every block of code, and every
command. Arguments: the source directory, the build directory, the program aft,
the library libaft.so and the C++ compiler."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, BUILD, PROGRAM, LIBRARY = (Path(a).resolve() for a in sys.argv[1:5])
COMPILER = sys.argv[5]
README = (SOURCE / "README.md").read_text()


def blocks(language):
    """The fenced blocks of README.md in a language; there must be one."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)
    assert found, f"README.md has no block of {language}"
    return found


def run(command, **options):
    """Runs a list of words; the test fails with all output where it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    if done.returncode != 0:
        raise AssertionError(
            f"{command} gave exit code {done.returncode}:\n{done.stdout}"
        )
    return done.stdout


class TestReadme(unittest.TestCase):
    def test_commands(self):
        # In a directory of their own: a command may use what one before wrote.
        with tempfile.TemporaryDirectory() as work:
            for block in blocks("sh"):
                for line in block.splitlines():
                    words = shlex.split(line, comments=True)
                    if not words:
                        continue
                    with self.subTest(line):
                        self.command(words, work)

    def command(self, words, work):
        if words[0] == "make":  # make test is what runs this
            run(["make", "-n"] + words[1:], cwd=SOURCE)
        elif words[0] in ("build/release/aft", "build/release/aft-bench"):
            program = PROGRAM.with_name(Path(words[0]).name)
            self.assertTrue(run([program] + words[1:], cwd=work).strip())
        else:
            self.fail(f"no way to test the command {words}")

    def test_python(self):
        environment = dict(
            os.environ,
            PYTHONPATH=str(SOURCE / "python"),
            AFT_LIBRARY=str(LIBRARY),
        )
        for block in blocks("python"):
            run([sys.executable, "-c", block], env=environment)

    def test_cpp_and_cmake(self):
        install = re.search(r"`(cmake --install build/release .*?)`", README)
        self.assertTrue(install, "README.md does not say how to install")
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            here = {"build/release": BUILD, "DIR": work / "installed"}
            run([here.get(w, w) for w in shlex.split(install.group(1))])
            (work / "main.cc").write_text("\n".join(blocks("cpp")))
            (work / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\n"
                "project(readme LANGUAGES CXX)\n"
                "add_executable(your_program main.cc)\n"
                + "\n".join(blocks("cmake"))
            )
            run(
                [
                    "cmake",
                    "-S",
                    work,
                    "-B",
                    work / "build",
                    f"-Daft_ROOT={work / 'installed'}",
                    f"-DCMAKE_CXX_COMPILER={COMPILER}",
                    "-DCMAKE_BUILD_TYPE=Release",
                ]
            )
            run(["cmake", "--build", work / "build"])
            run([work / "build" / "your_program"])

    def test_links(self):
        for target in re.findall(r"\]\(([^)#]+)\)", README):
            if "://" not in target:
                self.assertTrue((SOURCE / target).exists(), target)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
