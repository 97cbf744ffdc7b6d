"""Shared by the tests of distributed runs."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from program import AFT, TIMEOUT, ProgramTest, metrics, sets
from tensors import load_tensors

PRESET = "text-aft-local-4x128"
SMALL = sets(
    model__layers=1, model__width=16, model__length=32, train__batch_size=8,
    train__validate_every=10, train__save_every=3, train__report_every=5,
    data__valid_bytes=2000,
    # Learning rates that do not depend on the number of steps.
    train__schedule="constant", train__warmup_steps=2, train__steps=20,
)  # fmt: skip
ENDLESS = [*SMALL, "--set", "train.steps=1000000", "--timeout", "5"]
# Seconds from the death of one process to the end of all others: the timeout,
# the search for the failed rank, and the load of the machine.
SOON = 40
HELD = []


def free_port():
    """A port that the system assigns to no other process, but that can be used."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    HELD.append(s)
    return s.getsockname()[1]


def rank_of(pid):
    """The rank of a process, or None."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [v for v in variables if v.startswith(b"RANK=")]
    return int(found[0][5:]) if found else None


def ranks_below(pid):
    """The processes of a launcher, by rank."""
    out = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            child = int(path.parent.name)
            if (rank := rank_of(child)) is not None:
                out[rank] = child
    return out


class Runs(ProgramTest):
    def begin(self, *arguments, **options):
        run = subprocess.Popen(
            [AFT, *map(str, arguments)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip
        self.addCleanup(self.end, run)
        return run

    def end(self, run):
        if run.poll() is None:
            for pid in ranks_below(run.pid).values():
                os.kill(pid, signal.SIGKILL)
            run.kill()
            run.communicate()

    def begin_ranks(self, arguments, variables=({}, {}), before=([], [])):
        """Starts ranks without a launcher, each with its own variables and command
        prefix."""
        port, runs = str(free_port()), []
        for rank, own in enumerate(variables):
            run = subprocess.Popen(
                [*before[rank], AFT, *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=os.environ | {
                    "RANK": str(rank), "WORLD_SIZE": str(len(variables)),
                    "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                } | own,
            )  # fmt: skip
            self.addCleanup(run.kill)
            runs.append(run)
        return runs

    def await_steps(self, run, out, least=10):
        """Waits for a line of the metrics."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            self.assertIsNone(run.poll(), "ended early")
            self.assertLess(time.monotonic(), deadline)
            if (out / "metrics.jsonl").exists():
                lines = (out / "metrics.jsonl").read_text().splitlines()
                if len(lines) >= least // 5:
                    return
            time.sleep(0.05)

    def alike(self, one, other):
        """Equal up to float rounding."""
        a, _ = load_tensors(one / "state/checkpoint.safetensors")
        b, _ = load_tensors(other / "state/checkpoint.safetensors")
        self.assertEqual(a.keys(), b.keys())
        for name, (shape, numbers) in a.items():
            self.assertEqual(shape, b[name][0])
            apart = max(abs(x - y) for x, y in zip(numbers, b[name][1]))
            self.assertLess(apart, 2e-4, name)
        for x, y in zip(metrics(one), metrics(other), strict=True):
            self.assertAlmostEqual(x["loss"], y["loss"], delta=1e-4)
            self.assertEqual("validation" in x, "validation" in y)
