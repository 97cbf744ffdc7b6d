"""`aft generate`: prompts from files and the standard input, saved states,
interruption, the interactive mode and a terminal's protection. Argument: the
program."""

import array
import fcntl
import os
import re
import shutil
import signal
import subprocess
import termios
import time

from program import AFT, TIMEOUT, ProgramTest, Terminal, aft, main, sets

KEPT = "surrogateescape"  # keeps bytes that are not UTF-8
WEIGHTS = "weights of step 1, the best by validation\n"


class Generate(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = self.work / "model"
        self.train_on_text(self.model)

    def generate(self, *arguments, **options):
        # Generated text need not be UTF-8.
        done = self.succeed("generate", self.model, *arguments, errors=KEPT, **options)
        return done.stdout.encode("utf-8", KEPT)

    def test_names_the_weights(self):
        done = self.succeed("generate", self.model, "--bytes", 1, errors=KEPT)
        self.assertEqual(done.stderr, f"{self.model}: {WEIGHTS}")

    def test_prompts_from_files_and_the_standard_input(self):
        file = self.work / "prompt"
        file.write_bytes(b"Once upon\n a time")
        expected = self.generate("--prompt", "Once upon\n a time", "--bytes", 20)
        self.assertTrue(expected.startswith(b"Once upon\n a time"))
        self.assertEqual(self.generate("--prompt-file", file, "--bytes", 20), expected)
        for words in (["--prompt", "-"], ["--prompt-file", "-"]):
            found = self.generate(*words, "--bytes", 20, input=file.read_bytes())
            self.assertEqual(found, expected)
        # --prompt first, then files.
        two = self.generate("--prompt-file", file, "--prompt", "A", "--bytes", 20)
        self.assertTrue(two.startswith(b"==== 1\nA"))
        self.assertIn(b"\n==== 2\nOnce upon\n a time", two)
        # An empty prompt is a newline.
        self.assertEqual(self.generate("--prompt", "", "--bytes", 20),
                         self.generate("--bytes", 20))
        fails = lambda *rest: self.fails(*rest[:2], "generate", self.model, *rest[2:])
        fails(2, ["'-' is given 2 times"], "--prompt", "-", "--prompt-file", "-")
        fails(2, ["cannot be '-'"], "--interactive", "--prompt", "-")
        fails(2, ["one prompt, got 2"], "--interactive", "--prompt", "a", "--prompt", "b")
        fails(1, ["/nowhere", "No such file"], "--prompt-file", "/nowhere")
        fails(1, [self.work, "a directory"], "--prompt-file", self.work)
        fails(2, ["--prompt-file", "empty"], "--prompt-file", "")

    def test_resumes_from_a_state(self):
        state = self.work / "new/folder/state"
        whole = self.generate("--prompt", "a", "--bytes", 90)
        first = self.generate("--prompt", "a", "--bytes", 40, "--save-state", state)
        rest = self.generate("--state", state, "--bytes", 50)
        self.assertEqual(whole, first.removesuffix(b"\n") + rest)
        self.fails(2, ["one prompt"], "generate", self.model, "--state", state,
                   "--prompt", "a", "--prompt", "b")  # fmt: skip
        self.fails(1, ["/nowhere"], "generate", self.model, "--state", "/nowhere")

    def test_states_of_other_models_and_damaged_ones_are_refused(self):
        state = self.work / "state"
        self.generate("--bytes", 4, "--save-state", state)
        other = self.work / "other"
        shutil.copytree(self.model, other)
        self.succeed("train", "--resume", other, "--steps", 8)
        self.fails(1, [state, "other weights", "fingerprint"],
                   "generate", other, "--state", state)  # fmt: skip
        whole = state.read_bytes()
        state.write_bytes(whole[:-5])
        self.fails(1, [state], "generate", self.model, "--state", state)
        # A bit of the exponent of a sum: another finite value.
        state.write_bytes(whole[:-80] + bytes([whole[-80] ^ 1]) + whole[-79:])
        self.fails(1, [state, "the file is damaged"],
                   "generate", self.model, "--state", state)  # fmt: skip

    def test_state_that_cannot_be_written_fails_before_generating(self):
        file = self.work / "file"
        file.write_text("")
        for path in (file / "state", "/dev/null", self.work):
            done = aft("generate", self.model, "--bytes", 1, "--save-state", path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"aft: {path}", done.stderr)
            self.assertEqual(done.stdout, "")

    def begin(self, *arguments):
        run = subprocess.Popen(
            [AFT, "generate", str(self.model), "--bytes", "100000000", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self.addCleanup(run.kill)
        return run

    def test_state_never_replaces_a_file_of_a_run(self):
        before = {p: p.read_bytes() for p in self.model.rglob("*") if p.is_file()}
        for name in ("model.safetensors", "config.json", "state/checkpoint.safetensors"):
            self.fails(2, ["--save-state", name, "of a run directory"], "generate",
                       self.model, "--bytes", 1, "--save-state", self.model / name)  # fmt: skip
        after = {p: p.read_bytes() for p in self.model.rglob("*") if p.is_file()}
        self.assertEqual(before, after)

    def test_prompts_from_pipes(self):
        expected = self.generate("--prompt", "ab", "--bytes", 5)
        done = self.succeed("generate", self.model, "--prompt-file", "/dev/stdin",
                            "--bytes", 5, input=b"ab", errors="replace")  # fmt: skip
        self.assertEqual(expected.decode("utf-8", "replace"), done.stdout)

    def test_interrupted_generation_saves_its_state(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            state = self.work / f"state{code}"
            run = self.begin("--prompt", "a", "--save-state", str(state))
            first = run.stdout.read(20)
            run.send_signal(number)
            out, errors = run.communicate(timeout=TIMEOUT)
            self.assertEqual(run.returncode, code, errors)
            self.assertIn(f"continue with --state {state}", errors.decode())
            said = (first + out).removesuffix(b"\n")
            rest = self.generate("--state", state, "--bytes", 10)
            whole = self.generate("--prompt", "a", "--bytes", len(said) + 9)
            self.assertEqual(said + rest, whole)

    def test_interrupted_while_nothing_reads_the_text(self):
        state = self.work / "state"
        run = self.begin("--prompt", "a", "--save-state", str(state))
        fcntl.fcntl(run.stdout, fcntl.F_SETPIPE_SZ, 4096)
        held = array.array("i", [0])
        while held[0] < 4096:
            self.assertIsNone(run.poll(), "ended early")
            fcntl.ioctl(run.stdout, termios.FIONREAD, held)
        time.sleep(0.2)  # now a write waits
        run.send_signal(signal.SIGINT)
        time.sleep(0.2)
        out, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 130, errors)
        self.assertIn(f"continue with --state {state}", errors.decode())
        rest = self.generate("--state", state, "--bytes", 1)
        whole = self.generate("--prompt", "a", "--bytes", len(out) - 1)
        self.assertEqual(out.removesuffix(b"\n") + rest, whole)

    def test_interrupted_before_the_prompt_was_read(self):
        prompt, state = self.work / "prompt", self.work / "state"
        prompt.write_bytes(b"word " * 1000000)
        run = self.begin("--prompt-file", str(prompt), "--save-state", str(state))
        run.stderr.readline()  # the weights, before the prompt is read
        while not self.catches_interrupts(run):
            self.assertIsNone(run.poll(), "ended early")
        run.send_signal(signal.SIGINT)
        out, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 130)
        self.assertIn(f"{state} is not written", errors.decode())
        self.assertEqual(out.strip(), b"")
        self.assertFalse(state.exists())

    def catches_interrupts(self, run):
        with open(f"/proc/{run.pid}/status") as status:
            caught = int(re.search(r"SigCgt:\s*(\w+)", status.read())[1], 16)
        return caught >> (signal.SIGINT - 1) & 1

    def test_writes_in_turn(self):
        told = self.generate("-i", "--bytes", 10, "--save-state", self.work / "state",
                             input=b"The man\n\nA dog\n")
        self.assertTrue((self.work / "state").exists())
        # Each turn ends with a newline; its text may contain others.
        state = self.work / "one"
        first = self.generate("--prompt", "\nThe man", "--bytes", 10,
                              "--save-state", state)[8:]
        second = self.generate("--state", state, "--bytes", 10, "--save-state", state)
        third = self.generate("--state", state, "--prompt", "\nA dog", "--bytes", 10)[6:]
        self.assertEqual(told, first + second + third)
        # A prompt is continued first.
        told = self.generate("-i", "--prompt", "a", "--bytes", 10, input=b"")
        self.assertEqual(told, self.generate("--prompt", "a", "--bytes", 10))
        self.assertEqual(self.generate("-i", input=b""), b"")

    def test_interactive_terminal(self):
        with Terminal(AFT, "generate", self.model, "-i", "--bytes", 5) as terminal:
            terminal.expect("Ctrl-D ends.\r\n> ")
            terminal.type(b"The man\n")
            terminal.expect("\n> ")
            terminal.type(b"\x04")
            self.assertEqual(terminal.end(), 0)
        with Terminal(AFT, "generate", self.model, "-i",
                      "--bytes", 100000000) as terminal:
            terminal.expect("\n> ")
            terminal.type(b"The man\n")
            terminal.expect("\r\n", "\r\x1b[K")
            terminal.type(b"\x03")  # stops the model
            terminal.expect("\n> ")
            terminal.type(b"\x03")  # ends
            self.assertEqual(terminal.end(), 130)

    def test_control_characters_on_a_terminal(self):
        prompt = "a\x1b[31m\x0e\u009b\u20ac"
        words = [AFT, "generate", self.model, "--bytes", 1, "--prompt", prompt]
        with Terminal(*words) as terminal:
            terminal.expect("a\\x1b[31m\\x0e\\xc2\\x9b\u20ac")
            self.assertEqual(terminal.end(), 0)
        with Terminal(*words, "--raw") as terminal:
            terminal.expect(prompt)
            self.assertEqual(terminal.end(), 0)
        # Not in a pipe.
        self.assertIn(prompt.encode(), self.generate("--bytes", 1, "--prompt", prompt))


if __name__ == "__main__":
    main()
