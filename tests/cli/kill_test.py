"""Runs of `aft train` that are killed repeatedly at random times, from before
their directory exists to their last file, and full disks: the final
result is bit-identical to that of an undisturbed run. Argument: the program.
AFT_SEED repeats the random choices, up to timing."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from program import AFT, TIMEOUT, ProgramTest, aft, main, metrics, sets

TRAIN = ["train", "--threads", 1]  # sums in one order
NEW = [*TRAIN, "text-aft-local-4x128", *sets(
    model__layers=1, model__width=16, model__length=32, train__batch_size=2,
    train__validate_every=5, train__save_every=2, train__report_every=2, train__ema=0.9,
    data__valid_bytes=300, train__steps=120,
)]  # fmt: skip
KILLS, SHARE = 50, 17  # in total, and at most per run
FILES = ["config.json", "curve.svg", "metrics.jsonl", "model.safetensors", "state"]
CHECKPOINT = "state/checkpoint.safetensors"


def seen(out):
    """Names, times and sizes of the files of a run, to detect changes."""
    found = []
    for place in (out, out / "state"):
        try:
            with os.scandir(place) as entries:
                found += [(e.path, e.stat().st_mtime_ns, e.stat().st_size)
                          for e in entries]  # fmt: skip
            found.append(str(place))
        except FileNotFoundError:
            pass
    return sorted(map(str, found))


def call(out):
    """The command that starts or resumes the run."""
    if (out / "config.json").exists():
        return [*TRAIN, "--resume", out]
    return [*NEW, "--out", out]


def saved(out):
    checkpoint = out / CHECKPOINT
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0


def stepped(out, before):
    """Whether a run has a checkpoint newer than `before` and has made steps: the
    first checkpoint precedes config.json and any step."""
    try:
        lines = (out / "metrics.jsonl").stat().st_size
    except FileNotFoundError:
        return False
    return lines > 0 and (out / "config.json").exists() and saved(out) != before


class CrashTest(ProgramTest):
    def same(self, whole, out):
        self.same_runs(whole, out)

        def without_clock(run):
            clock = ("seconds", "tokens_per_second")
            return [
                {k: v for k, v in line.items() if k not in clock}
                for line in metrics(run)
            ]

        self.assertEqual(without_clock(whole), without_clock(out))
        self.assertEqual(FILES, sorted(os.listdir(out)))
        self.assertEqual(["checkpoint.safetensors"], os.listdir(out / "state"))


class TestKill(CrashTest):
    def start(self, out):
        return subprocess.Popen(
            [AFT, *map(str, call(out))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def kill(self, run, out, ready, wait, changes):
        """Kills a run `wait` seconds and then `changes` file changes after it is
        ready. Returns whether it was still running."""
        deadline = time.monotonic() + TIMEOUT
        while run.poll() is None and not ready():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.0003)
        try:
            run.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            last = seen(out)
            while changes > 0 and run.poll() is None:
                self.assertLess(time.monotonic(), deadline)
                now = seen(out)
                if now == last:
                    time.sleep(0.0003)
                else:
                    last, changes = now, changes - 1
        run.send_signal(signal.SIGKILL)
        error = run.communicate()[1].decode("utf-8", "replace")
        self.assertIn(run.returncode, (0, -signal.SIGKILL), error)
        return run.returncode != 0

    def test_killed_and_resumed_is_bit_identical(self):
        seed = int(os.environ.get("AFT_SEED", time.time_ns() % 2**32))
        print(f"AFT_SEED={seed}", flush=True)
        rng = random.Random(seed)
        whole = self.work / "whole"
        begin = time.monotonic()
        run = self.start(whole)
        while not saved(whole):  # the time to the first checkpoint
            self.assertIsNone(run.poll())
            self.assertLess(time.monotonic(), begin + TIMEOUT)
            time.sleep(0.001)
        reach = time.monotonic() - begin
        run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0)
        rest = time.monotonic() - begin - reach

        # Killed before it creates its directory.
        out = self.work / "run0"
        self.assertTrue(self.kill(self.start(out), out, lambda: True, 0, 0))
        self.assertFalse(out.exists())
        # Only kills of a run that has made steps count.
        kills = early = torn = runs = 0
        limit = 2 * rest / SHARE
        while kills < KILLS:
            out = self.work / f"run{runs}"
            runs += 1
            hits = 0
            while True:
                before = saved(out) if (out / "metrics.jsonl").exists() else 0
                enough = hits >= SHARE or kills >= KILLS
                # After a random time, or while it writes; sometimes while it
                # starts or reads its files.
                changes = rng.choice((0, 0, 0, 1, 2, 3, 5, 8))
                begins = not enough and rng.random() < 0.15
                wait = TIMEOUT if enough else rng.uniform(0, reach if begins else limit)
                run = self.start(out)
                if not self.kill(
                    run, out, lambda: begins or stepped(out, before), wait, changes
                ):  # fmt: skip
                    limit *= 0.7
                    break
                if stepped(out, before):
                    kills, hits = kills + 1, hits + 1
                else:
                    early += 1
                torn += any("unfinished" in name for name in seen(out))
            self.same(whole, out)
        print(f"{kills} kills, {early} more before a step was saved, "
              f"{torn} while writing a file, {runs} runs")  # fmt: skip

    def test_killed_before_the_run_exists(self):
        """The same command starts over, whatever files are left."""
        whole, out = self.work / "whole", self.work / "run"
        self.succeed(*NEW, "--out", whole)
        out.mkdir()
        (out / "state").mkdir()
        (out / "state/.unfinished-1-7").write_bytes(b"half")
        (out / ".unfinished-1-8").write_bytes(b"half")
        self.fails(1, [f"{out}/config.json"], "train", "--resume", out)
        # An initial checkpoint with other weights.
        other = self.work / "other"
        self.succeed(*NEW, "--out", other, "--set", "train.seed=5")
        shutil.copy(other / CHECKPOINT, out / CHECKPOINT)
        self.succeed(*NEW, "--out", out)
        self.same(whole, out)


class TestFullDisk(CrashTest):
    """On a small separate file system."""

    def setUp(self):
        super().setUp()
        self.disk = Path(tempfile.mkdtemp(dir=self.work))
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "none", self.disk],
            capture_output=True, text=True,
        )  # fmt: skip
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a file system: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.disk], check=True)

    def leave(self, free):
        """Fills the disk, except for `free` bytes."""
        ballast = self.disk / "ballast"
        ballast.write_bytes(b"")
        page = 4096
        space = os.statvfs(self.disk)
        size = space.f_bavail * space.f_frsize - page * -(-free // page)
        ballast.write_bytes(bytes(max(0, size)))

    def fails_for_space(self, out):
        done = aft(*call(out))
        self.assertEqual(done.returncode, 1, done.stderr)
        last = done.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("aft: "), last)
        self.assertIn("No space left on device", last)
        self.assertIn(f"{out}", last)
        self.assertEqual([], [name for name in seen(out) if "unfinished" in name])
        return last

    def test_resumes_once_there_is_space(self):
        whole, out = self.work / "whole", self.disk / "run"
        self.succeed(*NEW, "--out", whole)
        size = (whole / CHECKPOINT).stat().st_size
        for free in (0, 8192, size // 2):
            self.leave(free)
            self.fails_for_space(out)
            self.assertFalse(saved(out))
        # The old and the new checkpoint must fit at the same time.
        for free in (size + 32768, 2 * size - 4096, 2 * size + 40960):
            self.leave(free - sum(f.stat().st_size for f in out.rglob("*")))
            self.assertIn(str(out / CHECKPOINT), self.fails_for_space(out))
            kept = (out / CHECKPOINT).read_bytes()
            self.fails_for_space(out)
            self.assertEqual(kept, (out / CHECKPOINT).read_bytes())
        (self.disk / "ballast").unlink()
        self.assertIn("resuming from step", self.succeed(*call(out)).stderr)
        self.same(whole, out)


if __name__ == "__main__":
    main()
