"""Checks the include table: which module may include which modules and which
libraries. include_table_test.py PROJECT_DIR; fails with one line per violation.

The directory list is the architecture: includes go only upward in MODULES, and
base, kernels and io never include torch. CONTRIBUTING.md has the same table.
"""

import os
import re
import sys
import tempfile
import unittest

TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
HIGHWAY = ("hwy/",)
JSON = ("nlohmann/",)
IMAGES = ("png.h", "jpeglib.h", "jerror.h", "turbojpeg.h")
POSIX = (
    "dirent.h", "dlfcn.h", "fcntl.h", "malloc.h", "poll.h", "pthread.h",
    "sched.h", "spawn.h", "unistd.h", "arpa/", "netdb.h", "netinet/", "sys/",
)

# The names of libraries in CONTRIBUTING.md.
LIBRARIES = {
    "torch": TORCH,
    "Highway": HIGHWAY,
    "nlohmann-json": JSON,
    "libpng, libjpeg": IMAGES,
    "POSIX": POSIX,
    "CLI11": ("CLI/",),
}

# module: (directory, modules it may include besides itself, libraries it may
# include besides the C++ standard library)
MODULES = {
    "base": ("aft/base", (), JSON),
    "kernels": ("aft/kernels", ("base",), HIGHWAY),
    "io": ("aft/io", ("base",), JSON + IMAGES + POSIX),
    "ops": ("aft/ops", ("base", "kernels", "io"), TORCH),
    "nn": ("aft/nn", ("base", "kernels", "io", "ops"), TORCH),
    "models": ("aft/models", ("base", "kernels", "io", "ops", "nn"), TORCH + JSON),
    "data": ("aft/data", ("base", "io"), TORCH + JSON + POSIX),
    "train": (
        "aft/train",
        ("base", "kernels", "io", "ops", "nn", "models", "data"),
        TORCH + JSON + POSIX,
    ),
    "tasks": (
        "aft/tasks",
        ("base", "kernels", "io", "ops", "nn", "models", "data", "train"),
        TORCH + JSON + POSIX,
    ),
    "cli": (
        "cli",
        ("base", "kernels", "io", "ops", "nn", "models", "data",
         "train", "tasks"),
        TORCH + JSON + POSIX + ("CLI/",),
    ),
    "bench": (
        "bench",
        ("base", "kernels", "io", "ops", "nn", "models", "data",
         "train", "tasks", "cli"),
        TORCH + JSON + POSIX + ("CLI/",),
    ),
}

STANDARD = set(
    """algorithm any array atomic bitset cassert cctype cerrno cfenv cfloat
    charconv chrono cinttypes climits clocale cmath codecvt complex
    condition_variable csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib
    cstring ctime cuchar cwchar cwctype deque exception execution filesystem
    forward_list fstream functional future initializer_list iomanip ios iosfwd
    iostream istream iterator limits list locale map memory memory_resource
    mutex new numeric optional ostream queue random ratio regex
    scoped_allocator set shared_mutex sstream stack stdexcept streambuf string
    string_view system_error thread tuple type_traits typeindex typeinfo
    unordered_map unordered_set utility valarray variant vector
    assert.h ctype.h errno.h fenv.h float.h inttypes.h limits.h locale.h math.h
    setjmp.h signal.h stdarg.h stddef.h stdint.h stdio.h stdlib.h string.h
    time.h""".split()
)

SUFFIXES = (".cc", ".h", ".c", ".cpp", ".hpp", ".inc")
# Comments, and the strings that could look like the start of one.
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)


def without_comments(text):
    """text with each comment replaced by its line breaks."""

    def replacement(m):
        token = m.group()
        return token if token[0] == '"' else "\n" * token.count("\n")

    return COMMENT.sub(replacement, text)


def module_of(path):
    """The module of a path from the top of the project, None outside all."""
    for module, (folder, _, _) in MODULES.items():
        if path.startswith(folder + "/"):
            return module
    return None


def objection(root, path, quote, target):
    """Why `path` may not include `target`, or None."""
    module = module_of(path)
    if module is None:
        return "is in no module of the table"
    beside = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if quote == '"' and os.path.isfile(os.path.join(root, beside)):
        target = beside.replace(os.sep, "/")
    _, modules, libraries = MODULES[module]
    if target.startswith(("aft/", "cli/", "tests/", "bench/", "examples/")):
        other = module_of(target)
        if other == module or other in modules:
            return None
        allowed = ", ".join((module,) + modules)
        return f"module {module} may include the modules {allowed}"
    if target in STANDARD:
        return None
    if any(target == x or x[-1] == "/" and target.startswith(x)
           for x in libraries):
        return None
    allowed = ", ".join(libraries) or "none"
    return f"module {module} may include the C++ standard library and {allowed}"


def scan(root):
    """(number of files per module, list of violations) below root."""
    files = {module: 0 for module in MODULES}
    violations = []
    for top in ("aft", "cli", "bench"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if not name.endswith(SUFFIXES):
                    continue
                full = os.path.join(folder, name)
                path = os.path.relpath(full, root).replace(os.sep, "/")
                module = module_of(path)
                if module is None:
                    violations.append(f"{path}: is in no module of the table")
                    continue
                files[module] += 1
                with open(full, encoding="utf-8") as f:
                    text = without_comments(f.read())
                for m in INCLUDE.finditer(text):
                    reason = objection(root, path, m.group(1), m.group(2))
                    if reason:
                        line = text.count("\n", 0, m.start(1)) + 1
                        violations.append(
                            f"{path}:{line}: includes {m.group(2)}, but {reason}"
                        )
    return files, violations


class IncludeTable(unittest.TestCase):
    project = None

    def test_project(self):
        files, violations = scan(self.project)
        self.assertGreater(files["kernels"], 0, f"no kernels in {self.project}")
        self.assertGreater(files["io"], 0, f"no io in {self.project}")
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_modules_and_libraries_exist(self):
        for module, (folder, _, libraries) in MODULES.items():
            self.assertTrue(os.path.isdir(os.path.join(self.project, folder)), module)
            for library in libraries:
                self.assertTrue(any(library in l for l in LIBRARIES.values()), library)

    def test_contributing_has_this_table(self):
        with open(os.path.join(self.project, "CONTRIBUTING.md"), encoding="utf-8") as f:
            text = f.read()
        rows = re.findall(r"^\| `([\w/]+)` \| ([^|]*) \| ([^|]*) \|$", text, re.M)
        table = {folder: (modules, libraries) for folder, modules, libraries in rows}
        expected = {}
        for folder, modules, allowed in MODULES.values():
            names = [n for n, l in LIBRARIES.items() if set(l) <= set(allowed)]
            expected[folder] = (", ".join(modules) or "-", ", ".join(names) or "-")
        self.assertEqual(expected, table)

    def check(self, path, line, allowed):
        """`line`, as line 4 of `path` in a new tree, is a violation (or not)."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in (
                ("aft/ops/ops.h", "#include <ATen/core/Tensor.h>\n"),
                (path, f"// A /* comment.\n/* #include <torch/torch.h>\n*/\n{line}\n"),
            ):
                full = os.path.join(root, name)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as f:
                    f.write(text)
            _, violations = scan(root)
        if allowed:
            self.assertEqual([], violations)
        else:
            self.assertEqual(1, len(violations), violations)
            self.assertTrue(violations[0].startswith(f"{path}:4: "), violations)

    def test_finds_what_is_forbidden(self):
        for path, line in (
            ("aft/kernels/bad.cc", "#include <torch/torch.h>"),
            ("aft/kernels/bad.cc", '#include "ATen/ATen.h"'),
            ("aft/kernels/bad.h", "  #  include <c10/util/Optional.h>"),
            ("aft/kernels/bad.cc", '#include "aft/io/safetensors.h"'),
            ("aft/kernels/bad.cc", '#include "aft/ops/ops.h"'),
            ("aft/kernels/bad.cc", "#include <aft/ops/ops.h>"),
            ("aft/kernels/bad.cc", '#include "../ops/ops.h"'),
            ("aft/kernels/bad.cc", "#include <unistd.h>"),
            ("aft/kernels/bad.cc", "#include <nlohmann/json.hpp>"),
            ("aft/kernels/deep/bad.cc", "#include <immintrin.h>"),
            ("aft/io/bad.cc", "#include <torch/library.h>"),
            ("aft/base/bad.cc", '#include "aft/io/file.h"'),
            ("aft/base/bad.cc", "#include <torch/torch.h>"),
            ("aft/data/bad.cc", '#include "aft/nn/block.h"'),
            ("aft/io/bad.cc", '#include "aft/kernels/kernels.h"'),
            ("aft/io/bad.cc", "#include <hwy/highway.h>"),
            ("aft/ops/bad.cc", '#include "aft/nn/aft.h"'),
            ("aft/ops/bad.cc", "#include <CLI/CLI.hpp>"),
            ("aft/nn/bad.cc", '#include "aft/models/language.h"'),
            ("aft/models/bad.cc", '#include "aft/train/trainer.h"'),
            ("aft/train/bad.cc", '#include "aft/tasks/task.h"'),
            ("aft/tasks/bad.cc", '#include "aft/attic/attic.h"'),
            ("aft/tasks/bad.cc", '#include "cli/model.h"'),
            ("aft/io/bad.cc", '#include "aft/nn/aft.h"'),
            ("aft/io/bad.cc", "#include <torch/torch.h>  // a/*"),
            ("aft/io/bad.cc", "#include <c10/core/Device.h>"),
            ("aft/ops/bad.cc", '#include "cli/demo.h"'),
            ("aft/ops/bad.cc", '#include "tests/shapes.h"'),
            ("cli/bad.cc", '#include "bench/bench.h"'),
        ):
            with self.subTest(path=path, line=line):
                self.check(path, line, allowed=False)

    def test_finds_a_module_that_is_not_in_the_table(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "aft/attic"))
            open(os.path.join(root, "aft/attic/old.cc"), "w").close()
            self.assertEqual(
                ["aft/attic/old.cc: is in no module of the table"], scan(root)[1]
            )

    def test_lets_pass_what_is_allowed(self):
        for path, line in (
            ("aft/kernels/good.cc", "#include <cstdint>"),
            ("aft/kernels/good.cc", '#include "hwy/highway.h"'),
            ("aft/kernels/good.cc", '#include "aft/kernels/kernels.h"'),
            ("aft/kernels/good.cc", "// #include <torch/torch.h>"),
            ("aft/io/good.cc", "#include <nlohmann/json.hpp>"),
            ("aft/io/good.cc", "#include <png.h>"),
            ("aft/io/good.cc", "#include <sys/mman.h>"),
            ("aft/ops/good.cc", '#include "ops.h"'),
            ("aft/ops/good.cc", '#include "aft/kernels/kernels.h"'),
            ("aft/nn/good.cc", "#include <torch/torch.h>"),
            ("aft/tasks/good.cc", '#include "aft/io/safetensors.h"'),
            ("cli/good.cc", '#include "aft/ops/ops.h"'),
            ("cli/good.cc", "#include <CLI/CLI.hpp>"),
            ("cli/good.cc", '#include "cli/commands.h"'),
        ):
            with self.subTest(path=path, line=line):
                self.check(path, line, allowed=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(f"usage: {sys.argv[0]} PROJECT_DIR")
    IncludeTable.project = sys.argv.pop()
    unittest.main()
