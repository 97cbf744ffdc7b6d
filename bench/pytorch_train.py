#!/usr/bin/env python3
"""A training step in plain PyTorch compared with the same step in aft: time and memory.

    bench/pytorch_train.py --aft-bench build/release/aft-bench
    bench/pytorch_train.py --layers 12 --width 512 --systems aft-local

Each system is trained for a few steps in a separate process, first PyTorch's, then aft's: a byte language
model of the same size, with the same dropout, clipping and AdamW. The PyTorch side is what a careful user writes: the
formula in tensor calls with the largest keys and biases subtracted first, all cores, multi-tensor AdamW, and an
allocator that keeps freed memory, as aft's does.
"""
import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time

# glibc reads these when a process starts: the settings of `aft`.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000", "MALLOC_TOP_PAD_": "16777216"}
THREADS = len(os.sched_getaffinity(0))
PRESETS = {"aft-local": "enwik8-aft-local-24x256", "aft-simple": "enwik8-aft-simple-24x256",
           "transformer": "enwik8-transformer-24x256"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aft-bench", metavar="PROGRAM", default="build/release/aft-bench",
                        help="default: build/release/aft-bench")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=1024, help="T")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3, help="timed steps, after a warm-up step")
    parser.add_argument("--systems", default="aft-local,aft-simple,transformer")
    parser.add_argument("--json", action="store_true", help="a JSON array instead of a table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(system, o):
    import torch
    from torch import nn

    class AFT(nn.Module):
        """sigmoid(q) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj), j <= t."""

        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(o.width, o.width) for _ in range(4))
            if system == "aft-local":
                self.left = nn.Parameter(torch.randn(o.length, o.rank) * 0.01)
                self.right = nn.Parameter(torch.randn(o.length, o.rank) * 0.01)
                ones = torch.ones(o.length, o.length, dtype=torch.bool)
                self.register_buffer("outside", ones.tril(-o.window))
                self.register_buffer("future", ones.triu(1))

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            e = torch.exp(k - k.detach().amax(1, keepdim=True))
            if system == "aft-simple":
                num, den = torch.cumsum(e * v, 1), torch.cumsum(e, 1)
            else:
                w = (self.left @ self.right.t()).masked_fill(self.outside, 0).masked_fill(self.future, -math.inf)
                w = torch.exp(w - w.detach().amax(1, keepdim=True))
                num, den = torch.einsum("tj,bjd->btd", w, e * v), torch.einsum("tj,bjd->btd", w, e)
            return self.out(torch.sigmoid(q) * num / den)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(o.width, 3 * o.width), nn.Linear(o.width, o.width)
            self.register_buffer("future", torch.ones(o.length, o.length, dtype=torch.bool).triu(1))

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, o.heads, d // o.heads).permute(2, 0, 3, 1, 4)
            scores = (q / math.sqrt(d // o.heads)) @ k.transpose(-2, -1)
            y = scores.masked_fill(self.future, -math.inf).softmax(-1) @ v
            return self.out(y.transpose(1, 2).reshape(b, t, d))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
            self.mixer = Attention() if system == "transformer" else AFT()
            self.mlp = nn.Sequential(nn.Linear(o.width, 4 * o.width), nn.GELU(), nn.Linear(4 * o.width, o.width))
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            x = x + self.drop(self.mixer(self.norm1(x)))
            return x + self.drop(self.mlp(self.norm2(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(256, o.width)
            self.positions = nn.Parameter(torch.randn(o.length, o.width) * 0.02)
            self.drop = nn.Dropout(0.1)
            self.blocks = nn.Sequential(*[Block() for _ in range(o.layers)])
            self.norm, self.head = nn.LayerNorm(o.width), nn.Linear(o.width, 256, bias=False)

        def forward(self, tokens):
            x = self.drop(self.embedding(tokens) + self.positions)
            return self.head(self.norm(self.blocks(x)))

    return Model()


def child(system, o):
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    model = make_model(system, o)
    linear = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    groups = [{"params": [p for p in model.parameters() if (id(p) in linear) == chosen],
               "weight_decay": 0.1 if chosen else 0.0} for chosen in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), foreach=True)
    times = []
    for _ in range(o.repeat + 1):
        tokens = torch.randint(0, 256, (o.batch, o.length + 1))
        start = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        loss.item()
        times.append(time.perf_counter() - start)
    print(json.dumps({"step_ms": 1e3 * statistics.median(times[1:]),
                      "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}))


def run(command, environment=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        sys.exit(f"{os.path.basename(__file__)}: {' '.join(command)} failed with exit code {done.returncode}")
    return json.loads(done.stdout)


def main():
    o = parse()
    if o.child:
        return child(o.child, o)
    rows = []
    for system in o.systems.split(","):
        if system not in PRESETS:
            sys.exit(f"{os.path.basename(__file__)}: --systems must be among {', '.join(PRESETS)}, got '{system}'")
        print(f"{system}: PyTorch", file=sys.stderr)
        theirs = run([sys.executable] + sys.argv + ["--child", system], ALLOCATOR)
        print(f"{system}: aft", file=sys.stderr)
        sets = [f"model.{key}={getattr(o, key)}" for key in ("layers", "width", "length", "window", "rank", "heads")]
        ours = run([o.aft_bench, "train", PRESETS[system], "--json", "--batch", str(o.batch), "--repeat",
                    str(o.repeat), "--threads", str(THREADS)] + [part for s in sets for part in ("--set", s)])[0]
        rows.append({"system": system, "pytorch_ms": theirs["step_ms"], "aft_ms": ours["step_ms"],
                     "speedup": theirs["step_ms"] / ours["step_ms"], "pytorch_gb": theirs["peak_gb"],
                     "aft_gb": ours["peak_gb"], "memory": ours["peak_gb"] / theirs["peak_gb"]})
    if o.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{o.layers}x{o.width}, T = {o.length}, batch {o.batch}, {THREADS} threads")
    print(f"{'system':<12}{'pytorch_ms':>12}{'aft_ms':>10}{'speedup':>9}{'pytorch_gb':>12}{'aft_gb':>8}{'memory':>8}")
    for r in rows:
        print(f"{r['system']:<12}{r['pytorch_ms']:>12.0f}{r['aft_ms']:>10.0f}{r['speedup']:>9.2f}"
              f"{r['pytorch_gb']:>12.2f}{r['aft_gb']:>8.2f}{r['memory']:>8.2f}")


if __name__ == "__main__":
    main()
