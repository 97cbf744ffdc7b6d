"""Distributed runs in which a process dies, hangs, or cannot be reached.
Argument: the program."""

import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time

from program import TIMEOUT, aft, main, metrics
from ranks import ENDLESS, PRESET, SMALL, SOON, Runs, free_port, ranks_below


class Peer(Runs):
    def check_lost_rank(self, rank, number, words, processes=2):
        out = self.work / f"{rank}-{number}"
        run = self.begin("launch", "-n", processes, "--", "train", PRESET,
                         "--out", out, *ENDLESS)  # fmt: skip
        self.await_steps(run, out)
        begun = time.monotonic()
        os.kill(ranks_below(run.pid)[rank], number)
        while set(ranks_below(run.pid)) - {rank}:
            self.assertLess(time.monotonic() - begun, SOON)
            time.sleep(0.05)
        # A hanging process is killed later by the launcher.
        _, errors = run.communicate(timeout=SOON)
        self.assertEqual(run.returncode, 1, errors)
        told = [line for line in errors.splitlines() if line.startswith("aft: [")]
        # Every other process names it and says how to resume.
        self.assertEqual(len(told), processes - 1, errors)
        for line in told:
            self.assertIn(f"rank {rank}", line)
            self.assertIn(words, line)
            self.assertIn(f"aft train --resume {out}", line)
        self.succeed("train", "--resume", out, "--set", "train.steps=1")

    def test_a_rank_that_is_killed(self):
        self.check_lost_rank(1, signal.SIGKILL, "does not respond", processes=4)
        self.check_lost_rank(0, signal.SIGKILL, "can no longer be reached")

    def test_a_rank_that_hangs(self):
        self.check_lost_rank(1, signal.SIGSTOP, "does not respond")
        self.check_lost_rank(0, signal.SIGSTOP, "does not respond")

    def test_a_rank_that_dies_in_a_long_validation(self):
        """A process that is busy for long and not waiting ends too."""
        out = self.work / "run"
        text = self.work / "text"
        text.write_bytes(bytes(range(32, 127)) * 400_000)
        runs = self.begin_ranks(
            ["train", PRESET, "--out", out, "--data", text, *SMALL,
             "--set", "data.valid_bytes=1900000", "--set", "train.validate_every=2",
             "--set", "train.report_every=1",
             "--set", "model.width=256", "--set", "model.layers=4",
             "--timeout", "4"],
        )  # fmt: skip
        self.await_steps(runs[0], out, 5)  # one line: the first step
        time.sleep(5)  # in the validation after the second
        begun = time.monotonic()
        runs[1].kill()
        _, errors = runs[0].communicate(timeout=TIMEOUT)
        self.assertLess(time.monotonic() - begun, SOON)
        # A waiting process would notice at once, a busy one by the heartbeat.
        self.assertGreater(time.monotonic() - begun, 4)
        self.assertEqual(runs[0].returncode, 3, errors)
        last = errors.splitlines()[-1]
        self.assertIn("rank 1 does not respond", last)
        self.assertIn(f"aft train --resume {out}", last)
        self.assertEqual(len(metrics(out)), 1)  # it did not continue

    def test_a_suspended_job_continues(self):
        """As by Slurm, or when a laptop is closed: no rank is reported as failed."""
        out = self.work / "run"
        run = self.begin("launch", "-n", 2, "--", "train", PRESET, "--out", out,
                         *ENDLESS)  # fmt: skip
        self.await_steps(run, out)
        ranks = ranks_below(run.pid).values()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in ranks:
                os.kill(pid, number)
            time.sleep(11)  # more than two timeouts
        self.await_steps(run, out, 5 * len(metrics(out)) + 10)
        run.send_signal(signal.SIGINT)
        said, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 130, errors)
        self.assertIn("saved at step", said)

    def test_more_ranks_than_open_files(self):
        files = (200, 200)
        run = self.begin(
            "train", PRESET, "--out", self.work / "run", *SMALL,
            env=os.environ | {
                "RANK": "0", "WORLD_SIZE": "40", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
            },
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files),
        )  # fmt: skip
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 1, errors)
        last = errors.splitlines()[-1]
        self.assertIn("40 processes need 300 open files", last)
        self.assertIn("allows 200", last)

    def test_a_port_in_use(self):
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
        """As a machine does when it restarts."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            s.settimeout(TIMEOUT)
            run = self.begin(
                "train", PRESET, "--out", self.work / "run", *SMALL,
                env=os.environ | {
                    "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(s.getsockname()[1]),
                },
            )  # fmt: skip
            # Three connections, twice: a check that the port listens, and two of
            # c10d's store.
            taken = [s.accept()[0] for _ in range(6)]
            taken[4].recv(1)  # a request; the process waits for the response
            for one in taken:
                at_once = struct.pack("ii", 1, 0)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                one.close()
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 3, errors)
        last = errors.splitlines()[-1]
        self.assertIn("aft: [1] rank 0, at 127.0.0.1:", last)
        self.assertIn("can no longer be reached", last)

    def test_an_interface_that_does_not_exist(self):
        done = aft("launch", "-n", 2, "--", "train", PRESET, "--out",
                   self.work / "run", *SMALL, "--timeout", "5",
                   env=os.environ | {"GLOO_SOCKET_IFNAME": "none7"})  # fmt: skip
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("none7", done.stderr)
        self.assertIn("ended with exit code 1", done.stderr)


class Namespaces(Runs):
    """Two machines, simulated by linked network namespaces."""

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
        return self.begin_ranks(
            arguments,
            [{"LOCAL_RANK": "0", "MASTER_ADDR": "10.77.0.1"}] * 2,
            [["ip", "netns", "exec", name] for name in self.names],
        )

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
            # Depends on which error the machine detects first.
            self.assertRegex(last, "does not respond|can no longer be reached")


if __name__ == "__main__":
    main()
