"""Shared by the tests of the command line: the program (their first argument),
commands that must succeed or fail, interrupted runs and terminals."""

import fcntl
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path

if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
    sys.exit(f"usage: {sys.argv[0]} PROGRAM [unittest options]")
AFT = str(Path(sys.argv[1]).resolve())
BENCH = str(Path(AFT).with_name("aft-bench"))
TIMEOUT = 600  # only for hangs: other tests may use the cores
# Background jobs of a script ignore SIGINT, and so would the programs tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Waiting threads sleep, so that concurrent tests get the cores.
os.environ["OMP_WAIT_POLICY"] = "passive"


def main():
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])


def aft(*arguments, errors="strict", program=AFT, **options):
    # Not as text, which would convert carriage returns, checked below, to
    # newlines.
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, timeout=TIMEOUT,
        **options
    )
    done.stdout = done.stdout.decode("utf-8", errors)
    done.stderr = done.stderr.decode("utf-8", errors)
    return done


def on_terminal(columns, *arguments, **variables):
    """Runs a command with stderr on a terminal of this width (0: unknown) and only
    these environment variables besides PATH and the like. Returns its stderr."""
    kept = {k: v for k, v in os.environ.items() if k not in ("TERM", "COLUMNS")}
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with subprocess.Popen(
        [AFT, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=theirs,
        env=kept | variables,
    ) as run:  # fmt: skip
        os.close(theirs)
        seen = b""
        try:
            while True:  # ends with an error once the program has exited
                seen += os.read(ours, 4096)
        except OSError:
            os.close(ours)
    if run.returncode != 0:
        raise AssertionError(seen)
    return seen.decode()


def sets(**keys):
    """Converts model__width=16 to --set model.width=16."""
    words = (f"{key.replace('__', '.')}={value}" for key, value in keys.items())
    return [word for each in words for word in ("--set", each)]


def metrics(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def lines_of(text, words):
    return [line for line in text.splitlines() if words in line]


class Terminal:
    """A command with a pseudo-terminal as its standard input and outputs."""

    def __init__(self, *command, columns=80, **environment):
        self.output = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            size = struct.pack("HHHH", 24, columns, 0, 0)
            fcntl.ioctl(2, termios.TIOCSWINSZ, size)
            environment = {**os.environ, "TERM": "xterm", **environment}
            os.execve(command[0], [str(word) for word in command], environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def read(self):
        """Reads some output; "" at the end."""
        if not select.select([self.fd], [], [], TIMEOUT)[0]:
            raise AssertionError(f"no output after {self.output!r}")
        try:
            piece = os.read(self.fd, 1 << 16).decode("utf-8", "replace")
        except OSError:  # the command has ended
            piece = ""
        self.output += piece
        return piece

    def expect(self, *words):
        """Reads until each of the words occurs, in this order, after those expected
        before."""
        for word in words:
            while word not in self.output:
                if not self.read():
                    raise AssertionError(f"expected {word!r}, got {self.output!r}")
            self.output = self.output.split(word, 1)[1]

    def type(self, keys):
        os.write(self.fd, keys)

    def end(self):
        """Reads to the end and returns the exit code."""
        while self.read():
            pass
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.work = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def succeed(self, *arguments, **options):
        done = aft(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Not a terminal: plain lines.
        self.assertNotIn("\r", done.stderr)
        self.assertNotIn("\033", done.stderr)
        return done

    def fails(self, code, words, *arguments, **options):
        with self.subTest(" ".join(map(str, arguments[-2:]))):
            done = aft(*arguments, **options)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            last = done.stderr.splitlines()[-1]
            name = Path(options.get("program", AFT)).name
            self.assertTrue(last.startswith(name + ": "), done.stderr)
            for word in words:
                self.assertIn(str(word), last)

    def train_on_text(self, out):
        """Trains a tiny text model."""
        self.succeed(
            "train", "text-aft-local-4x128", "--out", out, "--steps", 1,
            *sets(model__layers=1, model__width=16, model__length=32,
                  train__batch_size=2, data__valid_bytes=2000),
        )  # fmt: skip

    def await_file(self, run, path):
        deadline = time.monotonic() + TIMEOUT
        while not path.exists():
            self.assertIsNone(run.poll(), "ended early")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)

    def stop(self, number, out, *arguments):
        """Trains into `out` until the first checkpoint, then sends the signal."""
        with subprocess.Popen(
            [AFT, *map(str, arguments), *sets(train__steps=10**6),
             *sets(train__validate_every=10**6)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as run:  # fmt: skip
            try:
                self.await_file(run, out / "config.json")
                run.send_signal(number)
                run.wait(timeout=TIMEOUT)
            finally:
                run.kill()

    def saved_step(self, said):
        """The step at which an interrupted run was saved, which it prints once."""
        (step,) = re.findall(r"saved at step (\d+);", said)
        return int(step)

    def disturb(self, out, arguments, signals):
        """Runs a command that receives the signals, each soon after a new
        checkpoint, and is resumed to its end. Returns all outputs."""

        def saved():
            # A run without config.json cannot be resumed.
            if not (out / "config.json").exists():
                return 0
            return (out / "state/checkpoint.safetensors").stat().st_mtime_ns

        told, first, again = [], arguments, 0
        while True:
            number = signals[len(told)] if len(told) < len(signals) else None
            before, deadline = saved(), time.monotonic() + TIMEOUT
            with subprocess.Popen(
                [AFT, *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            ) as run:  # fmt: skip
                try:
                    while number and run.poll() is None:
                        self.assertLess(time.monotonic(), deadline)
                        if saved() != before:
                            time.sleep(random.uniform(0, 0.05))
                            run.send_signal(number)
                            break
                        time.sleep(0.005)
                    told.append(run.communicate(timeout=TIMEOUT)[0])
                finally:
                    run.kill()
            # "already has": it was killed after its last checkpoint.
            if ": done;" in told[-1] or "already has" in told[-1]:
                self.assertEqual(run.returncode, 0)
                if len(told) > 1:
                    return told
                # It was faster than this test: try again.
                again += 1
                self.assertLess(again, 5)
                shutil.rmtree(out)
                told, arguments = [], first
                continue
            self.assertIsNotNone(number, told[-1])
            killed = number == signal.SIGKILL
            self.assertEqual(run.returncode, -number if killed else 128 + number)
            arguments = ["train", "--resume", out]

    def same_runs(self, one, other):
        for name in ("model.safetensors", "state/checkpoint.safetensors"):
            self.assertEqual(
                (one / name).read_bytes(), (other / name).read_bytes(), name
            )
