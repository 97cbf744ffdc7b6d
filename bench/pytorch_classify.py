#!/usr/bin/env python3
"""Images per second of image classifiers in plain PyTorch, compared with the same classifiers in aft.

    bench/pytorch_classify.py
    bench/pytorch_classify.py --aft-bench build/release/aft-bench --rounds 5
    bench/pytorch_classify.py --systems aft-conv-tiny-h32 --method toeplitz,streams=2

DeiT (attention) and AFT-conv, tiny and small, with random weights: patches of 16, twelve pre-norm blocks, float32, no
gradients. The PyTorch side is what a careful user gets: every system is written in several ways (the methods), each
also with the batch split into chunks, with chunks distributed to single-threaded workers (streams), and traced and
frozen. All are tried first, their results must agree, and the fastest is measured in a separate process with an
allocator that keeps freed memory, as aft's does.

DeiT's methods: bmm (all heads in one batched product), heads (head by head on views of the fused q, k, v, no copies),
encoder (torch.nn.TransformerEncoderLayer). AFT-conv's: toeplitz (each head's exp(w) as a matrix over positions,
channel-major, so that nothing is copied), einsum (the same, tokens first), conv (depthwise conv2d, NCHW), conv-last
(channels last), conv-native (without oneDNN), fft. A method reads NAME[,jit][,chunk=IMAGES][,streams=WORKERS].
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
# Waiting threads sleep: if another process uses a core, spinning threads lose far more time than that core's share.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", **os.environ, **ALLOCATOR}
THREADS = len(os.sched_getaffinity(0))
PATCH, LAYERS, KERNEL, CLASSES, EPSILON = 16, 12, 11, 1000, 1e-6
SYSTEMS = {"deit-tiny": (192, 3), "deit-small": (384, 6), "aft-conv-tiny-h32": (192, 32),
           "aft-conv-tiny-h192": (192, 192), "aft-conv-small-h16": (384, 16), "aft-conv-small-h384": (384, 384)}
DEIT_METHODS = ("bmm", "heads", "encoder")
CONV_METHODS = ("toeplitz", "einsum", "conv", "conv-last", "conv-native", "fft")
DEIT_TARGET, CONV_TARGET = 1.3, 2.0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aft-bench", metavar="PROGRAM", help="compare with this program; default: only PyTorch")
    parser.add_argument("--batch", type=int, help="default: 32")
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels; default: 224")
    parser.add_argument("--threads", type=int, default=THREADS, help=f"default: {THREADS}")
    parser.add_argument("--repeat", type=int, help="timed batches per round, after a warm-up batch; default: 5")
    parser.add_argument("--rounds", type=int, help="rounds of PyTorch and aft; their median is printed; default: 3")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="default: all, " + ", ".join(SYSTEMS))
    parser.add_argument("--method", default="auto",
                        help="method, for the systems that have it; default: auto, the fastest")
    parser.add_argument("--streams", type=int, help="maximum number of workers for auto; 1: none; default: --threads")
    parser.add_argument("--json", action="store_true", help="a JSON array instead of a table")
    parser.add_argument("--quick", action="store_true", help="check the formulas, then one short round of two images")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    o = parser.parse_args()
    o.batch = o.batch or (2 if o.quick else 32)
    o.repeat = o.repeat or (1 if o.quick else 5)
    o.rounds = o.rounds or (1 if o.quick else 3)
    o.streams = o.streams or o.threads
    if o.method.split(",")[0] not in ("auto",) + DEIT_METHODS + CONV_METHODS:
        parser.error(f"--method must be one of auto, {', '.join(DEIT_METHODS + CONV_METHODS)}, got '{o.method}'")
    for system in o.systems.split(","):
        if system not in SYSTEMS:
            parser.error(f"--systems must be among {', '.join(SYSTEMS)}, got '{system}'")
    if o.size < PATCH or o.size % PATCH:
        parser.error(f"--size must be a multiple of {PATCH}, got {o.size}")
    if o.aft_bench and o.size != 224:
        parser.error("--aft-bench measures at --size 224 only")
    return o


def methods_of(system):
    return DEIT_METHODS if system.startswith("deit") else CONV_METHODS


# AFT-conv. `p` holds a block's q [d, d], k [h, d], v [d, d] and their biases, and w [h, kernel, kernel].


def position_matrix(w, grid):
    """[h, t, t']: exp(w) where t' is inside the window around t, 1 elsewhere."""
    import torch

    heads, kernel = w.shape[0], w.shape[-1]
    at = torch.arange(grid)
    offset = at[None, :] - at[:, None] + kernel // 2
    inside = (offset >= 0) & (offset < kernel)
    offset = offset.clamp(0, kernel - 1)
    m = torch.exp(w)[:, offset[:, None, :, None], offset[None, :, None, :]]
    m = torch.where(inside[:, None, :, None] & inside[None, :, None, :], m, torch.ones_like(m))
    return m.reshape(heads, grid * grid, grid * grid)


def make_aft_conv(method, p, grid, heads):
    """A function of x [images * grid * grid, d], giving the gated averages in the same shape."""
    import torch
    import torch.nn.functional as F

    d, tokens = p["q"].shape[0], grid * grid
    per = d // heads  # values per head, followed by the key of the head
    values_key = torch.cat([p["v"].view(heads, per, -1), p["k"].view(heads, 1, -1)], 1).flatten(0, 1)
    values_key_bias = torch.cat([p["v_bias"].view(heads, per), p["k_bias"].view(heads, 1)], 1).flatten()
    local = (torch.exp(p["w"]) - 1).repeat_interleave(per + 1, 0)  # one kernel per channel

    if method in ("toeplitz", "fft"):  # channels first: [channel, image, position]
        weight, bias = torch.cat([p["q"], values_key]), torch.cat([p["q_bias"], values_key_bias])[:, None].contiguous()
        if method == "toeplitz":
            matrix = position_matrix(p["w"], grid).transpose(1, 2).contiguous()

            def average(s, images):
                return torch.bmm(s.view(heads, -1, tokens), matrix).view(s.shape)
        else:
            side = grid + KERNEL - 1
            while any(side % f == 0 for f in range(7, side + 1) if all(f % g for g in range(2, f))):
                side += 1
            spectrum = torch.fft.rfft2(local.flip(1, 2), s=(side, side))[:, None]
            edge = KERNEL // 2

            def average(s, images):
                z = torch.fft.rfft2(s.view(-1, images, grid, grid), s=(side, side)).mul_(spectrum)
                z = torch.fft.irfft2(z, s=(side, side))[..., edge:edge + grid, edge:edge + grid]
                return z.reshape(s.shape).add_(s.sum(-1, keepdim=True))

        def mix(x):
            images = x.shape[0] // tokens
            y = torch.addmm(bias, weight, x.t())
            gate, s = y[:d].view(heads, per, images, tokens), y[d:].view(heads, per + 1, images, tokens)
            e = s[:, per:]
            e.sub_(e.amax(-1, keepdim=True)).exp_()
            s[:, :per].mul_(e)
            s = average(s, images)
            return gate.sigmoid_().mul_(s[:, :per]).mul_(s[:, per:].reciprocal_()).view(d, -1).t()

        return mix

    matrix, local = position_matrix(p["w"], grid) if method == "einsum" else None, local[:, None]

    def mix(x):  # tokens first: [image, position, channel]
        gate = F.linear(x, p["q"], p["q_bias"]).view(-1, tokens, heads, per)
        y = F.linear(x, values_key, values_key_bias)
        s = y.view(-1, tokens, heads, per + 1)
        e = s[..., per:]
        e.sub_(e.amax(1, keepdim=True)).exp_()
        s[..., :per].mul_(e)
        if method == "einsum":
            s = torch.einsum("htj,bjhc->bthc", matrix, s)
        else:
            z = y.view(-1, grid, grid, heads * (per + 1)).permute(0, 3, 1, 2)
            z = z if method == "conv-last" else z.contiguous()
            total = z.sum((2, 3), keepdim=True)
            with torch.backends.mkldnn.flags(enabled=method != "conv-native"):
                z = F.conv2d(z, local, padding=KERNEL // 2, groups=z.shape[1])
            s = z.add_(total).permute(0, 2, 3, 1).reshape(-1, tokens, heads, per + 1)
        return gate.sigmoid_().mul_(s[..., :per]).div_(s[..., per:]).view(-1, d)

    return mix


def make_attention(method, p, tokens, heads):
    """A function of x [images * tokens, d], giving the heads' outputs in the same shape."""
    import torch
    import torch.nn.functional as F

    d = p["q"].shape[0]
    per = d // heads
    scale = 1 / math.sqrt(per)  # folded into the queries' weights
    weight = torch.cat([p["q"] * scale, p["k"], p["v"]])
    bias = torch.cat([p["q_bias"] * scale, p["k_bias"], p["v_bias"]])

    def bmm(x):
        y = F.linear(x, weight, bias).view(-1, tokens, 3, heads, per).permute(2, 0, 3, 1, 4).contiguous()
        q, k, v = y.view(3, -1, tokens, per).unbind(0)
        y = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        return y.view(-1, heads, tokens, per).transpose(1, 2).reshape(-1, d)

    def by_head(x):
        y = F.linear(x, weight, bias).view(-1, tokens, 3, heads, per)
        parts = []
        for i in range(heads):
            q, k, v = y[:, :, :, i].unbind(2)
            parts.append(torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v))
        return torch.cat(parts, 2).view(-1, d)

    return bmm if method == "bmm" else by_head


def make_parameters(system):
    import torch

    d, heads = SYSTEMS[system]
    deit = system.startswith("deit")
    generator = torch.Generator().manual_seed(1)

    def normal(*shape, std=0.02):
        return torch.randn(*shape, generator=generator) * std

    def block():
        keys = d if deit else heads
        p = {"q": normal(d, d, std=0.1), "k": normal(keys, d, std=0.1), "v": normal(d, d), "out": normal(d, d),
             "fc1": normal(4 * d, d), "fc2": normal(d, 4 * d)}
        p.update({name + "_bias": normal(p[name].shape[0]) for name in list(p)})
        p.update({name: 1 + normal(d) for name in ("norm1", "norm2")})
        p.update({name + "_bias": normal(d) for name in ("norm1", "norm2")})
        if not deit:
            p["w"] = normal(heads, KERNEL, KERNEL, std=0.5)
        return p

    return {"patch": normal(d, 3 * PATCH * PATCH), "patch_bias": normal(d), "head": normal(CLASSES, d),
            "head_bias": normal(CLASSES), "norm": 1 + normal(d), "norm_bias": normal(d), "class": normal(1, 1, d),
            "blocks": [block() for _ in range(LAYERS)]}


def make_model(system, method, parameters, o):
    """A module from images [n, 3, size, size] to logits [n, 1000]."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    d, heads = SYSTEMS[system]
    deit = system.startswith("deit")
    grid = o.size // PATCH
    tokens = grid * grid + deit
    g = parameters
    positions = torch.randn(1, tokens, d, generator=torch.Generator().manual_seed(2)) * 0.02

    def norm(x, p, name):
        return F.layer_norm(x, (d,), p[name], p[name + "_bias"], EPSILON)

    def make_block(p):
        if deit:
            mix = make_attention(method, p, tokens, heads)
        else:
            mix = make_aft_conv(method, p, grid, heads)

        def block(x):  # changes x: the products are accumulated onto the residual
            y = mix(norm(x, p, "norm1"))
            x.add_(p["out_bias"]).addmm_(y, p["out"].t())
            y = torch._C._nn.gelu_(F.linear(norm(x, p, "norm2"), p["fc1"], p["fc1_bias"]))
            return x.add_(p["fc2_bias"]).addmm_(y, p["fc2"].t())

        return block

    def make_encoder(p):
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, 0.0, "gelu", EPSILON, batch_first=True, norm_first=True)
        attention = layer.self_attn
        for to, values in ((attention.in_proj_weight, torch.cat([p["q"], p["k"], p["v"]])),
                           (attention.in_proj_bias, torch.cat([p["q_bias"], p["k_bias"], p["v_bias"]]))):
            to.data.copy_(values)
        for name, part in (("out", attention.out_proj), ("fc1", layer.linear1), ("fc2", layer.linear2),
                           ("norm1", layer.norm1), ("norm2", layer.norm2)):
            part.weight.data.copy_(p[name])
            part.bias.data.copy_(p[name + "_bias"])
        return layer.eval().requires_grad_(False)

    encoder = method == "encoder"
    blocks = [(make_encoder if encoder else make_block)(p) for p in g["blocks"]]

    class Model(nn.Module):
        def forward(self, images):
            n = images.shape[0]
            x = images.view(n, 3, grid, PATCH, grid, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(n * grid * grid, -1)
            x = F.linear(x, g["patch"], g["patch_bias"])
            if deit:
                x = torch.cat([g["class"].expand(n, 1, d), x.view(n, -1, d)], 1).add_(positions)
                x = x if encoder else x.view(-1, d)
            for block in blocks:
                x = block(x)
            x = x.view(n, tokens, d)
            x = norm(x[:, 0], g, "norm") if deit else norm(x, g, "norm").mean(1)
            return F.linear(x, g["head"], g["head_bias"])

    return Model().eval()


class Runner:
    """A model together with how it is run: see NAME[,jit][,chunk=IMAGES][,streams=WORKERS]."""

    def __init__(self, system, method, models, o):
        import queue
        import threading
        import torch

        name, *options = method.split(",")
        values = dict(part.partition("=")[::2] for part in options)
        if name not in methods_of(system) or set(values) - {"jit", "chunk", "streams"}:
            sys.exit(f"{os.path.basename(__file__)}: {system} has the methods {', '.join(methods_of(system))} "
                     f"[,jit][,chunk=IMAGES][,streams=WORKERS], got '{method}'")
        self.o, self.streams = o, int(values.get("streams", 1))
        self.chunk = int(values.get("chunk", -(-o.batch // self.streams)))
        key = (name, "jit" in values and self.chunk)
        if name not in models:
            models[name] = make_model(system, name, models["parameters"], o)
        if key not in models:
            models[key] = models[name]
            if "jit" in values:
                with torch.no_grad():
                    traced = torch.jit.trace(models[name], torch.randn(self.chunk, 3, o.size, o.size),
                                             check_trace=False)
                    models[key] = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        self.model = models[key]
        self.todo, self.done, self.workers = queue.Queue(), queue.Queue(), []
        for _ in range(self.streams if self.streams > 1 else 0):
            self.workers.append(threading.Thread(target=self.work, daemon=True))
            self.workers[-1].start()

    def work(self):
        import torch

        torch.set_num_threads(max(1, self.o.threads // self.streams))
        with torch.inference_mode():
            for index, images in iter(self.todo.get, None):
                self.done.put((index, self.model(images)))

    def __call__(self, images):
        import torch

        chunks = images.split(self.chunk)
        if not self.workers:
            return torch.cat([self.model(part) for part in chunks]) if len(chunks) > 1 else self.model(images)
        for job in enumerate(chunks):
            self.todo.put(job)
        return torch.cat([part for _, part in sorted((self.done.get() for _ in chunks), key=lambda job: job[0])])

    def close(self):
        for _ in self.workers:
            self.todo.put(None)
        for worker in self.workers:
            worker.join()


def timed(run, images):
    start = time.perf_counter()
    run(images)
    return time.perf_counter() - start


def tune(system, models, images, o):
    """Returns the fastest method, and the images per second of each method that was tried."""
    import torch

    tried, wanted = {}, None

    def attempt(candidates):
        """Times the candidates in turn and keeps the best rate of each. Returns all methods, the fastest first."""
        nonlocal wanted
        runners = [(c, Runner(system, c, models, o)) for c in candidates if c not in tried]
        for c, run in runners:
            got = run(images)
            wanted = got if wanted is None else wanted
            if not torch.allclose(got, wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item()):
                sys.exit(f"{os.path.basename(__file__)}: {system}: {c} disagrees by {(got - wanted).abs().max():g}")
        for _ in range(1 if o.quick else 3):
            for c, run in runners:
                tried[c] = max(tried.get(c, 0), o.batch / timed(run, images))
        for _, run in runners:
            run.close()
        return sorted(tried, key=tried.get, reverse=True)

    order = attempt(methods_of(system))
    workers = f",streams={o.streams}" if o.streams > 1 else ""
    sizes = [f",chunk={n}" for n in (4, 8) if n * 2 * o.streams <= o.batch]
    order = attempt([name + size + workers for name in order[:2] for size in [""] + sizes])
    order = attempt([order[0].replace(",", ",jit,", 1) if "," in order[0] else order[0] + ",jit"])
    for c in order:
        print(f"    {tried[c]:8.2f} images/s  {c}", file=sys.stderr)
    return order[0], tried


def check():
    """Compares AFT-conv's methods with the double loop over positions, in double precision."""
    import torch

    torch.manual_seed(3)
    for grid, heads, per, images in ((4, 2, 3, 2), (7, 3, 1, 1)):
        d, tokens = heads * per, grid * grid
        p = {"q": torch.randn(d, d), "k": 2 * torch.randn(heads, d), "v": torch.randn(d, d)}
        p.update({name + "_bias": torch.randn(p[name].shape[0]) for name in list(p)})
        p["w"] = torch.randn(heads, KERNEL, KERNEL)
        p = {name: value.double() for name, value in p.items()}
        x = torch.randn(images, tokens, d).double()
        q, k, v = (x @ p[name].t() + p[name + "_bias"] for name in "qkv")
        y = torch.empty(images, tokens, heads, per).double()
        for b in range(images):
            for i in range(heads):
                for t in range(tokens):
                    num, den = 0, 0
                    for j in range(tokens):
                        row, column = j // grid - t // grid + KERNEL // 2, j % grid - t % grid + KERNEL // 2
                        inside = 0 <= row < KERNEL and 0 <= column < KERNEL
                        a = math.exp(k[b, j, i] + (p["w"][i, row, column] if inside else 0))
                        num, den = num + a * v[b, j, i * per:(i + 1) * per], den + a
                    y[b, t, i] = torch.sigmoid(q[b, t, i * per:(i + 1) * per]) * num / den
        for method in CONV_METHODS:
            for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
                mix = make_aft_conv(method, {name: value.to(dtype) for name, value in p.items()}, grid, heads)
                with torch.inference_mode():
                    error = (mix(x.view(-1, d).to(dtype)).reshape(y.shape) - y).abs().max().item()
                if not error < bound:
                    sys.exit(f"{os.path.basename(__file__)}: {method}, {dtype}: expected an error below {bound:g}, "
                             f"got {error:g}")
    print("AFT-conv's methods agree with the double loop", file=sys.stderr)


def child(system, o):
    import torch

    torch.set_num_threads(o.threads)
    models = {"parameters": make_parameters(system)}
    images = torch.randn(o.batch, 3, o.size, o.size, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        if o.method == "auto":
            method, tried = tune(system, models, images, o)
            print(json.dumps({"method": method, "tried": tried}))
            return
        run = Runner(system, o.method, models, o)
        models.clear()
        times = [timed(run, images) for _ in range(o.repeat + 1)]
        run.close()
    print(json.dumps({"system": system, "images_per_second": o.batch / statistics.median(times[1:]),
                      "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, "method": o.method}))


def run_json(command, environment=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment)
    if done.returncode != 0:
        sys.exit(f"{os.path.basename(__file__)}: {' '.join(command)} failed with exit code {done.returncode}")
    return json.loads(done.stdout)


def presets_of(systems):
    """aft's presets, and for each the PyTorch systems it is compared with: DeiT, AFT-conv (or None)."""
    found = {}
    for system in systems:
        size = "tiny" if "tiny" in system else "small"
        deit = f"deit-{size}" if f"deit-{size}" in systems else None
        if system == deit:
            found[f"imagenet-{system}"] = (deit, None)
            found[f"imagenet-aft-full-{size}"] = (deit, None)
        else:
            found["imagenet-" + system.replace("-h", f"-k{KERNEL}-h")] = (deit, system)
    return found


def compare(rounds, presets):
    """One row per preset of aft: medians over the rounds; ratios are computed per round."""
    rows = []
    for preset, (deit, conv) in presets.items():
        row = {"preset": preset,
               "images_per_second": statistics.median(ours[preset]["images_per_second"] for _, ours in rounds),
               "peak_gb": max(ours[preset].get("peak_gb", 0) for _, ours in rounds)}
        for name, system, target in (("deit", deit, DEIT_TARGET), ("aft_conv", conv, CONV_TARGET)):
            if system is None:
                continue
            ratio = statistics.median(ours[preset]["images_per_second"] / theirs[system]["images_per_second"]
                                      for theirs, ours in rounds)
            row["to_" + name] = ratio
            if preset != f"imagenet-{deit}":  # DeiT in aft has no target
                row[name + "_target"], row[name + "_met"] = target, ratio >= target
        rows.append(row)
    return rows


def main():
    o = parse()
    if o.child:
        return child(o.child, o)
    systems = o.systems.split(",")
    if o.quick:
        check()
    methods = {}
    for system in systems:
        if o.method.split(",")[0] in methods_of(system):
            methods[system] = o.method
            continue
        print(f"{system}: choosing the method", file=sys.stderr)
        tuned = run_json([sys.executable] + sys.argv + ["--child", system, "--method", "auto"], ENVIRONMENT)
        methods[system] = tuned["method"]
    presets = presets_of(systems)
    rounds = []
    for number in range(o.rounds):
        theirs, ours = {}, {}
        for system in systems:
            print(f"round {number + 1}: PyTorch, {system}", file=sys.stderr)
            theirs[system] = run_json([sys.executable] + sys.argv + ["--child", system, "--method", methods[system]],
                                      ENVIRONMENT)
        if o.aft_bench:
            print(f"round {number + 1}: aft", file=sys.stderr)
            rows = run_json([o.aft_bench, "classify", *presets, "--json", "--threads", str(o.threads), "--batch",
                             str(o.batch)])
            ours = {row["preset"]: row for row in rows}
            for preset in presets:
                if preset not in ours:
                    sys.exit(f"{os.path.basename(__file__)}: {o.aft_bench} classify printed no row for {preset}")
        rounds.append((theirs, ours))
    rows = [{"system": system,
             "images_per_second": statistics.median(r[system]["images_per_second"] for r, _ in rounds),
             "peak_gb": max(r[system]["peak_gb"] for r, _ in rounds), "method": methods[system]} for system in systems]
    compared = compare(rounds, presets) if o.aft_bench else []
    if o.json:
        print(json.dumps(rows + compared, indent=2))
        return
    print(f"{o.size}x{o.size}, batch {o.batch}, {o.threads} threads, {o.rounds} rounds")
    print(f"{'PyTorch':<22}{'images/s':>10}{'slowest':>10}{'fastest':>10}{'peak_gb':>9}  method")
    for r in rows:
        all_rounds = [theirs[r["system"]]["images_per_second"] for theirs, _ in rounds]
        print(f"{r['system']:<22}{r['images_per_second']:>10.2f}{min(all_rounds):>10.2f}{max(all_rounds):>10.2f}"
              f"{r['peak_gb']:>9.2f}  {r['method']}")
    if not o.aft_bench:
        return

    def ratio(row, name):
        if "to_" + name not in row:
            return f"{'-':>21}"
        target = f">= {row[name + '_target']}" if name + "_target" in row else ""
        verdict = ("met" if row[name + "_met"] else "MISSED") if target else ""
        return f"{row['to_' + name]:>6.2f}{target:>7}{verdict:>7}".rjust(21)

    print(f"\n{'aft':<36}{'images/s':>10}{'peak_gb':>9}{'to PyTorch DeiT':>21}{'to PyTorch AFT-conv':>21}")
    for r in compared:
        print(f"{r['preset']:<36}{r['images_per_second']:>10.2f}{r['peak_gb']:>9.2f}{ratio(r, 'deit')}"
              f"{ratio(r, 'aft_conv')}".rstrip())


if __name__ == "__main__":
    main()
