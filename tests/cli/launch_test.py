"""Several processes as one run: the same training as one, and what happens when
one of them dies, hangs, or cannot be reached. Argument: the program."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from program import AFT, TIMEOUT, ProgramTest, aft, main, metrics, sets
from tensors import load_tensors

PRESET = "text-aft-local-4x128"
SMALL = sets(
    model__layers=1, model__width=16, model__length=32, train__batch=8,
    train__validate=10, train__save=3, train__report=5, data__valid_bytes=2000,
    train__steps=20,
)  # fmt: skip
ENDLESS = [*SMALL, "--set", "train.steps=1000000", "--timeout", "3"]
# From the death of one to the end of all: the timeout, the look for who it was,
# and a machine that does other things too.
SOON = 40


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
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
    """The processes of a launcher: rank to pid."""
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
        """The same within the rounding of floats."""
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


class Launch(Runs):
    def test_as_one_process(self):
        one, two, four, later = (self.work / n for n in ("1", "2", "4", "later"))
        self.succeed("train", PRESET, "--out", one, *SMALL)
        self.succeed("launch", "-n", 2, "--", "train", PRESET, "--out", two, *SMALL)
        self.succeed("launch", "-n", 4, "--", "train", PRESET, "--out", four, *SMALL)
        self.alike(one, two)
        self.alike(one, four)
        # Another number goes on in the same order.
        self.succeed(
            "launch", "-n", 2, "--", "train", PRESET, "--out", later, *SMALL,
            "--steps", 10,
        )  # fmt: skip
        done = self.succeed("train", "--resume", later, "--steps", 20)
        self.assertIn("going on from step 10", done.stderr)
        self.alike(one, later)
        said = self.succeed("launch", "-n", 2, "--", "train", "--resume", later)
        self.assertEqual(said.stdout.count("20 steps already"), 1)

    def test_interrupt_saves_once(self):
        out = self.work / "run"
        run = self.begin("launch", "-n", 2, "--", "train", PRESET, "--out", out,
                         *ENDLESS)  # fmt: skip
        self.await_steps(run, out)
        run.send_signal(signal.SIGINT)
        said, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0, errors)
        self.assertEqual(said.count("saved at step"), 1, said)
        step = int(said.split("saved at step ")[1].split(";")[0])
        done = self.succeed("train", "--resume", out, "--steps", step + 1)
        self.assertIn(f"going on from step {step}", done.stderr)

    def lose(self, rank, number, words, processes=2):
        out = self.work / f"{rank}-{number}"
        run = self.begin("launch", "-n", processes, "--", "train", PRESET,
                         "--out", out, *ENDLESS)  # fmt: skip
        self.await_steps(run, out)
        begun = time.monotonic()
        os.kill(ranks_below(run.pid)[rank], number)
        said, errors = run.communicate(timeout=TIMEOUT)
        self.assertLess(time.monotonic() - begun, SOON)
        self.assertEqual(run.returncode, 1, errors)
        told = [line for line in errors.splitlines() if line.startswith("aft: [")]
        # Every other process says who it was, and how to go on.
        self.assertEqual(len(told), processes - 1, errors)
        for line in told:
            self.assertIn(f"rank {rank}", line)
            self.assertIn(words, line)
            self.assertIn(f"aft train --resume {out}", line)
        self.succeed("train", "--resume", out, "--set", "train.steps=1")

    def test_a_rank_that_is_killed(self):
        self.lose(1, signal.SIGKILL, "does not answer", processes=4)
        self.lose(0, signal.SIGKILL, "has gone")

    def test_a_rank_that_hangs(self):
        self.lose(1, signal.SIGSTOP, "does not answer")
        self.lose(0, signal.SIGSTOP, "does not answer")

    def test_starts_again_from_the_last_checkpoint(self):
        whole, torn = self.work / "whole", self.work / "torn"
        steps = ["--set", "train.steps=400"]
        self.succeed("launch", "-n", 2, "--", "train", PRESET, "--out", whole,
                     *SMALL, *steps)  # fmt: skip
        run = self.begin("launch", "-n", 2, "--max-restarts", 2, "--", "train",
                         PRESET, "--out", torn, *SMALL, *steps)  # fmt: skip
        for kill, rank in ((10, 1), (150, 0)):
            self.await_steps(run, torn, kill)
            os.kill(ranks_below(run.pid)[rank], signal.SIGKILL)
            while len(ranks_below(run.pid)) == 2:
                time.sleep(0.05)
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0, errors)
        self.assertEqual(errors.count("starting again from the last"), 2, errors)
        self.assertIn("rank 1 was killed by signal 9", errors)
        self.same_runs(whole, torn)  # the same number of processes: to the bit

    def test_gives_up_after_so_many(self):
        out = self.work / "run"
        begun = ["launch", "-n", 2, "--max-restarts", 1, "--", "train"]
        # Fails each time: there is no such file.
        done = aft(*begun, PRESET, "--out", out, "--data", self.work / "none")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stderr.count("starting again"), 1, done.stderr)
        self.assertIn("rank 0: ", done.stderr)  # in the words of rank 1
        self.assertIn(str(self.work / "none"), done.stderr)
        # Who is to blame is not who ended first; nothing can be gone on with.
        self.assertIn("launch: rank 0 ended with exit code 1", done.stderr)
        self.assertNotIn("--resume", done.stderr)
        # What is wrong stays wrong.
        done = aft(*begun, "--no-such-option")
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("starting again", done.stderr)

    def begin_ranks(self, arguments, variables):
        """Processes by hand, each with its own variables."""
        port, runs = str(free_port()), []
        for rank, own in enumerate(variables):
            run = subprocess.Popen(
                [AFT, *map(str, arguments)], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
                env=os.environ | {
                    "RANK": str(rank), "WORLD_SIZE": str(len(variables)),
                    "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                } | own,
            )  # fmt: skip
            self.addCleanup(run.kill)
            runs.append(run)
        return runs

    def test_launchers_that_count_restarts_apart(self):
        """As torchrun's agents of several machines do."""
        out = self.work / "run"
        words = ["train", PRESET, "--out", out, *SMALL]
        self.succeed("launch", "-n", 2, "--", *words)
        again = [{}, {"TORCHELASTIC_RESTART_COUNT": "2"}]
        for counts in (again, again[::-1]):
            said = ""
            for run in self.begin_ranks(words, counts):
                out, errors = run.communicate(timeout=TIMEOUT)
                self.assertEqual(run.returncode, 0, errors)
                said += out
            self.assertEqual(said.count("20 steps already"), 1, said)

    def test_a_rank_that_dies_in_a_long_validation(self):
        """Who is at work for long, and waits for nobody, ends too."""
        out = self.work / "run"
        text = self.work / "text"
        text.write_bytes(bytes(range(32, 127)) * 400_000)
        runs = self.begin_ranks(
            ["train", PRESET, "--out", out, "--data", text, *SMALL,
             "--set", "data.valid_bytes=1900000", "--set", "train.validate=1",
             "--set", "model.width=256", "--set", "model.layers=4",
             "--timeout", "2"],
            [{}, {}])  # fmt: skip
        while not (out / "state/checkpoint.safetensors").exists():
            self.assertIsNone(runs[0].poll())
            time.sleep(0.05)
        time.sleep(3)  # in the first validation
        begun = time.monotonic()
        runs[1].kill()
        _, errors = runs[0].communicate(timeout=TIMEOUT)
        self.assertLess(time.monotonic() - begun, SOON)
        self.assertEqual(runs[0].returncode, 3, errors)
        last = errors.splitlines()[-1]
        self.assertIn("rank 1 does not answer", last)
        self.assertIn(f"aft train --resume {out}", last)
        self.assertFalse((out / "metrics.jsonl").exists())  # it never came back

    def test_a_port_that_is_taken(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            done = aft("launch", "-n", 2, "--port", s.getsockname()[1], "--", "train",
                       PRESET, "--out", self.work / "run", *SMALL, "--timeout", "2")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("[0] rank 0 cannot listen at 127.0.0.1:", done.stderr)
        self.assertIn("launch: rank 0 ended with exit code 1", done.stderr)
        self.assertFalse((self.work / "run").exists())

    def test_a_rank_0_that_resets_its_connections(self):
        """As a machine does that begins anew."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            run = self.begin(
                "train", PRESET, "--out", self.work / "run", *SMALL,
                env=os.environ | {
                    "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(s.getsockname()[1]),
                },
            )  # fmt: skip
            time.sleep(3)  # it waits for an answer
            self.assertIsNone(run.poll())
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 3, errors)
        last = errors.splitlines()[-1]
        self.assertIn("aft: [1] rank 0, at 127.0.0.1:", last)
        self.assertIn("has gone", last)

    def test_an_interface_that_is_not_there(self):
        done = aft("launch", "-n", 2, "--", "train", PRESET, "--out",
                   self.work / "run", *SMALL, "--timeout", "5",
                   env=os.environ | {"GLOO_SOCKET_IFNAME": "none7"})  # fmt: skip
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("none7", done.stderr)
        self.assertIn("ended with exit code 1", done.stderr)

    def test_wrong_calls(self):
        self.fails(2, ["expected `train ...`", "nothing"], "launch", "-n", 2)
        self.fails(2, ["'eval'"], "launch", "-n", 2, "--", "eval", "x")
        self.fails(2, ["--processes", "0"], "launch", "-n", 0, "--", "train", "x")
        small = ["train", PRESET, "--out", self.work / "x", *SMALL]
        for variables, words in (
            ({"RANK": "2", "WORLD_SIZE": "2"}, ["RANK", "'2'"]),
            ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR", "nothing"]),
            ({"WORLD_SIZE": "2"}, ["RANK", "nothing"]),
        ):
            self.fails(1, words, *small, env=os.environ | variables)
        alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(free_port())}  # fmt: skip
        self.fails(3, ["[0] rank 1 has not come"], *small, "--timeout", 1,
                   env=os.environ | alone)  # fmt: skip
        alone["RANK"] = "1"
        self.fails(3, ["[1] rank 0, at", "cannot be reached"], *small, "--timeout", 1,
                   env=os.environ | alone)  # fmt: skip
        self.assertFalse((self.work / "x").exists())

    def test_other_data_than_rank_0_has(self):
        text, other = self.work / "text", self.work / "other"
        text.write_text("a text " * 2000)
        other.write_text("another text " * 2000)
        # As on a second machine: the same path, and another file.
        elsewhere = ["unshare", "--mount", "sh", "-c",
                     f'mount --bind {other} {text} && exec "$@"', "sh"]  # fmt: skip
        try:
            subprocess.run([*elsewhere, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("mounting needs root")
        port = str(free_port())
        runs = []
        for rank, before in enumerate(([], elsewhere)):
            runs.append(subprocess.Popen(
                [*before, AFT, "train", PRESET, "--data", str(text), *SMALL,
                 "--out", str(self.work / "run")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=os.environ | {
                    "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                },
            ))  # fmt: skip
            self.addCleanup(runs[-1].kill)
        for run, words, code in ((runs[1], str(text), 1), (runs[0], "rank 1: ", 3)):
            _, errors = run.communicate(timeout=TIMEOUT)
            self.assertEqual(run.returncode, code, errors)
            last = errors.splitlines()[-1]
            self.assertIn(words, last)
            self.assertIn("expected data.fingerprint", last)

    def test_one_process_a_directory(self):
        out = self.work / "run"
        run = self.begin("train", PRESET, "--out", out, *ENDLESS)
        self.await_steps(run, out)
        self.fails(1, [str(out), "another process is training there"], "train",
                   "--resume", out)  # fmt: skip
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0, errors)
        self.succeed("train", "--resume", out, "--set", "train.steps=1")

    def test_torchrun(self):
        python = "/usr/bin/python3"
        try:
            subprocess.run([python, "-c", "import torch.distributed.run"],
                           check=True, capture_output=True)  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no torchrun here")
        one, two = self.work / "one", self.work / "two"
        self.succeed("train", PRESET, "--out", one, *SMALL)
        # Where stdout goes is said because Python 3.11 chokes on the default.
        run = subprocess.run(
            [python, "-m", "torch.distributed.run", "--nproc_per_node", "2",
             "--master_port", str(free_port()), "--redirects", "1", "--tee", "1",
             "--log_dir", str(self.work / "logs"), "--no_python", AFT, "train",
             PRESET, "--out", str(two), *SMALL],
            capture_output=True, text=True, timeout=TIMEOUT,
        )  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stderr)
        self.alike(one, two)

    def test_bench(self):
        done = self.succeed("bench", "distributed", "--quick", "--json")
        row = json.loads(done.stdout)
        self.assertEqual(row["processes"], 2)
        self.assertGreater(row["step_ms"], 0)
        self.assertEqual(row["ring_bound_bytes"], row["gradient_bytes"])
        # Gradients have gone over the wire, once or nearly so: what else goes
        # is of the size of this small model.
        self.assertGreater(row["sent_over_bound"], 0.99)
        self.assertLess(row["sent_over_bound"], 1.5)
        # A checkpoint every 50 steps, a validation every 100.
        done = self.succeed("bench", "steady", PRESET, "--first", 100, "--last", 400,
                            *sets(model__length=32), "--json")  # fmt: skip
        rows = json.loads(done.stdout)
        self.assertEqual([row["processes"] for row in rows], [1, 2])
        for row in rows:
            self.assertGreater(row["first_bytes"], 1e7)
            self.assertGreater(row["ratio"], 0.98)
            self.assertLess(row["ratio"], 1.03)

    def test_another_run_is_never_taken_over(self):
        old = self.work / "old"
        self.succeed("train", PRESET, "--out", old, *SMALL)
        kept = (old / "state/checkpoint.safetensors").read_bytes()
        self.fails(1, ["rank 0 ended with exit code 2"], "launch", "-n", 2,
                   "--max-restarts", 3, "--", "train", PRESET, "--out", old,
                   *SMALL, "--steps", 30)  # fmt: skip
        # Nor by a launcher that begins again whatever it was told.
        again = os.environ | {"TORCHELASTIC_RESTART_COUNT": "1"}
        for words, key in (
            (["--steps", 30], "train.steps"), (sets(model__width=32), "model.width"),
        ):  # fmt: skip
            self.fails(2, [old, "holds another run", key], "train", PRESET, "--out",
                       old, *SMALL, *words, env=again)  # fmt: skip
        self.fails(2, [old, "holds another run", "task"], "train",
                   "image-aft-local-4x128", "--out", old, env=again)  # fmt: skip
        self.assertEqual(kept, (old / "state/checkpoint.safetensors").read_bytes())
        done = self.succeed("train", PRESET, "--out", old, *SMALL, env=again)
        self.assertIn("steps already", done.stdout)


class Namespaces(Runs):
    """Two machines, as network namespaces with a wire between them."""

    def setUp(self):
        super().setUp()
        self.names = [f"aft{os.getpid()}{side}" for side in "ab"]
        if os.geteuid() != 0 or not shutil.which("ip"):
            self.skipTest("network namespaces need root and iproute2")
        a, b = self.names
        self.addCleanup(self.remove)
        for words in (
            f"netns add {a}", f"netns add {b}",
            f"link add {a} type veth peer name {b}",
            f"link set {a} netns {a}", f"link set {b} netns {b}",
            f"-n {a} addr add 10.77.0.1/24 dev {a}",
            f"-n {b} addr add 10.77.0.2/24 dev {b}",
            f"-n {a} link set lo up", f"-n {b} link set lo up",
            f"-n {a} link set {a} up", f"-n {b} link set {b} up",
        ):  # fmt: skip
            done = self.ip(words)
            if done.returncode != 0:
                self.skipTest(f"no network namespaces here: {done.stderr}")

    def ip(self, words):
        return subprocess.run(
            ["ip", *words.split()], capture_output=True, text=True
        )

    def remove(self):
        for name in self.names:
            self.ip(f"netns del {name}")

    def begin_both(self, *arguments):
        port = str(free_port())
        runs = []
        for rank, name in enumerate(self.names):
            run = subprocess.Popen(
                ["ip", "netns", "exec", name, AFT, *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=os.environ | {
                    "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                    "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": port,
                },
            )  # fmt: skip
            self.addCleanup(run.kill)
            runs.append(run)
        return runs

    def test_two_machines(self):
        one, two = self.work / "one", self.work / "two"
        self.succeed("train", PRESET, "--out", one, *SMALL)
        for run in self.begin_both("train", PRESET, "--out", two, *SMALL):
            _, errors = run.communicate(timeout=TIMEOUT)
            self.assertEqual(run.returncode, 0, errors)
        self.alike(one, two)

    def test_a_cut_link(self):
        out = self.work / "run"
        runs = self.begin_both("train", PRESET, "--out", out, *ENDLESS)
        self.await_steps(runs[0], out)
        begun = time.monotonic()
        a = self.names[0]
        self.assertEqual(self.ip(f"-n {a} link set {a} down").returncode, 0)
        for rank, run in enumerate(runs):
            _, errors = run.communicate(timeout=TIMEOUT)
            self.assertLess(time.monotonic() - begun, SOON)
            self.assertEqual(run.returncode, 3, errors)
            last = errors.splitlines()[-1]
            self.assertIn(f"rank {1 - rank}", last)
            # By what the machine first hears of it.
            self.assertRegex(last, "does not answer|has gone")


if __name__ == "__main__":
    main()
