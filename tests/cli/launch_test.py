"""Distributed runs: equal to training in one process, started by any launcher,
and restarted. Argument: the program."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from program import AFT, BENCH, TIMEOUT, aft, main, sets
from ranks import ENDLESS, PRESET, SMALL, Runs, free_port, ranks_below


class Launch(Runs):
    def test_equals_one_process(self):
        one, two, four, later = (self.work / n for n in ("1", "2", "4", "later"))
        self.succeed("train", PRESET, "--out", one, *SMALL)
        self.succeed("launch", "-n", 2, "train", PRESET, "--out", two, *SMALL)
        self.succeed("launch", "-n", 4, "--", "train", PRESET, "--out", four, *SMALL)
        self.alike(one, two)
        self.alike(one, four)
        # Resumes with another number of processes.
        self.succeed(
            "launch", "-n", 2, "--", "train", PRESET, "--out", later, *SMALL,
            "--steps", 10,
        )  # fmt: skip
        done = self.succeed("train", "--resume", later, "--steps", 20)
        self.assertIn("resuming from step 10", done.stderr)
        self.alike(one, later)
        said = self.succeed("launch", "-n", 2, "--", "train", "--resume", later)
        self.assertEqual(said.stdout.count("already has 20 steps"), 1)

    def test_interrupt_saves_once(self):
        for early in (True, False):
            out = self.work / f"run{early}"
            run = self.begin("launch", "-n", 2, "--", "train", PRESET, "--out",
                             out, *ENDLESS)  # fmt: skip
            if early:
                self.await_file(run, out)
            else:
                self.await_steps(run, out)
            run.send_signal(signal.SIGINT)
            said, errors = run.communicate(timeout=TIMEOUT)
            self.assertEqual(run.returncode, 130, errors)
            step = self.saved_step(said)
            done = self.succeed("train", "--resume", out, "--steps", step + 1)
            self.assertIn(f"resuming from step {step}", done.stderr)

    def test_interrupted_at_once_and_twice(self):
        for early, count in ((True, 1), (True, 2), (False, 2)):
            with self.subTest(early=early, count=count):
                out = self.work / f"run{early}{count}"
                run = self.begin("launch", "-n", 2, "train", PRESET, "--out", out,
                                 *ENDLESS)  # fmt: skip
                children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
                while not children.read_text():  # the processes start
                    time.sleep(0.001)
                if not early:
                    self.await_steps(run, out)
                for _ in range(count):
                    run.send_signal(signal.SIGTERM)
                    time.sleep(0.05)
                _, errors = run.communicate(timeout=TIMEOUT)
                self.assertEqual(run.returncode, 143, errors)
                self.assertNotIn("killed", errors)

    def test_restarts_from_the_last_checkpoint(self):
        whole, torn = self.work / "whole", self.work / "torn"
        steps = ["--set", "train.steps=1500"]
        self.succeed("launch", "-n", 2, "--", "train", PRESET, "--out", whole,
                     *SMALL, *steps)  # fmt: skip
        run = self.begin("launch", "-n", 2, "--max-restarts", 2, "--", "train",
                         PRESET, "--out", torn, *SMALL, *steps)  # fmt: skip
        for kill, rank in ((10, 1), (700, 0)):
            self.await_steps(run, torn, kill)
            killed = ranks_below(run.pid)
            os.kill(killed[rank], signal.SIGKILL)
            # Until both are replaced.
            while len(set(ranks_below(run.pid).values()) - set(killed.values())) < 2:
                self.assertIsNone(run.poll())
                time.sleep(0.05)
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0, errors)
        self.assertEqual(errors.count("restarting from the last"), 2, errors)
        self.assertIn("rank 1 was killed by signal 9", errors)
        self.same_runs(whole, torn)  # the same number of processes: bit-identical

    def test_gives_up_after_max_restarts(self):
        out = self.work / "run"
        begun = ["launch", "-n", 2, "--max-restarts", 1, "--", "train"]
        # Fails each time: the file does not exist.
        done = aft(*begun, PRESET, "--out", out, "--data", self.work / "none")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stderr.count("restarting"), 1, done.stderr)
        self.assertIn("rank 0: ", done.stderr)  # as reported by rank 1
        self.assertIn(str(self.work / "none"), done.stderr)
        # The failed rank need not end first; there is nothing to resume.
        self.assertIn("launch: rank 0 ended with exit code 1", done.stderr)
        self.assertNotIn("--resume", done.stderr)
        # Usage errors are not retried.
        done = aft(*begun, "--no-such-option")
        self.assertEqual(done.returncode, 2)
        self.assertNotIn("restarting", done.stderr)

    def test_launchers_that_count_restarts_separately(self):
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
            self.assertEqual(said.count("already has 20 steps"), 1, said)

    def test_errors(self):
        self.fails(2, ["expected `train ...`", "nothing"], "launch", "-n", 2)
        self.fails(2, ["'eval'"], "launch", "-n", 2, "--", "eval", "x")
        # A usage error of train, and without `--`.
        for words in (["train", "nonsense"], ["--", "train", "nonsense"]):
            self.fails(2, ["no preset 'nonsense'"], "launch", "-n", 2, *words)
        # Once, not per rank.
        for words in (["--stepz", 3], ["nonsense"], [PRESET, "--resume", "x"]):
            done = aft("launch", "-n", 2, "train", *words)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
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
        self.fails(3, ["[0] rank 1 has not joined"], *small, "--timeout", 1,
                   env=os.environ | alone)  # fmt: skip
        alone["RANK"] = "1"
        self.fails(3, ["[1] rank 0, at", "cannot be reached"], *small, "--timeout", 1,
                   env=os.environ | alone)  # fmt: skip
        self.assertFalse((self.work / "x").exists())

    def test_data_that_differ_from_those_of_rank_0(self):
        text, other = self.work / "text", self.work / "other"
        text.write_text("a text " * 2000)
        other.write_text("another text " * 2000)
        # As on a second machine: the same path is a different file.
        elsewhere = ["unshare", "--mount", "sh", "-c",
                     f'mount --bind {other} {text} && exec "$@"', "sh"]  # fmt: skip
        try:
            subprocess.run([*elsewhere, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("mounting needs root")
        runs = self.begin_ranks(
            ["train", PRESET, "--data", text, *SMALL, "--out", self.work / "run"],
            before=([], elsewhere),
        )
        for run, words, code in ((runs[1], str(text), 1), (runs[0], "rank 1: ", 3)):
            _, errors = run.communicate(timeout=TIMEOUT)
            self.assertEqual(run.returncode, code, errors)
            last = errors.splitlines()[-1]
            self.assertIn(words, last)
            self.assertIn("expected data.fingerprint", last)

    def test_one_process_per_directory(self):
        out = self.work / "run"
        run = self.begin("train", PRESET, "--out", out, *ENDLESS)
        self.await_steps(run, out)
        self.fails(1, [str(out), "another process is training in this directory"], "train",
                   "--resume", out)  # fmt: skip
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 130, errors)
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
        # stdout is given explicitly because Python 3.11 fails with the default.
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
        done = self.succeed("distributed", "--quick", "--repeat", 3, "--json",
                            program=BENCH)  # fmt: skip
        row = json.loads(done.stdout)
        self.assertEqual(row["processes"], 2)
        self.assertGreater(row["step_ms"], 0)
        self.assertEqual(row["ring_bound_bytes"], row["gradient_bytes"])
        # Gradients were sent about once; all other traffic is of the size of this
        # small model.
        self.assertGreater(row["sent_over_bound"], 0.99)
        self.assertLess(row["sent_over_bound"], 1.5)
        # A checkpoint every 50 steps, a validation every 100.
        done = self.succeed("steady", PRESET, "--first", 100, "--last", 400,
                            *sets(model__length=32), "--json", program=BENCH,
                            env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
        rows = json.loads(done.stdout)
        self.assertEqual([row["processes"] for row in rows], [1, 2])
        for row in rows:
            self.assertGreater(row["first_bytes"], 1e7)
            if "ASAN_OPTIONS" in os.environ:  # which keeps freed memory
                continue
            self.assertGreater(row["ratio"], 0.98)
            self.assertLess(row["ratio"], 1.03)

    def test_another_run_is_never_taken_over(self):
        old = self.work / "old"
        self.succeed("train", PRESET, "--out", old, *SMALL)
        kept = (old / "state/checkpoint.safetensors").read_bytes()
        self.fails(2, ["rank 0 ended with exit code 2"], "launch", "-n", 2,
                   "--max-restarts", 3, "--", "train", PRESET, "--out", old,
                   *SMALL, "--steps", 30)  # fmt: skip
        # Nor by a launcher that restarts in any case.
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
        self.assertIn("already has", done.stdout)


if __name__ == "__main__":
    main()
