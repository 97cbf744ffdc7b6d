"""Writes golden.safetensors beside this script: inputs, outputs and gradients
of the four AFT operators, from the paper's equations in a way of its own.

    y = sigmoid(q) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)  (Eq. 2)

Forward: the sums as they stand, in 80-bit floats, which hold exp(+-11000), so
that nothing is rescaled; conv by Eq. 6, with shifted arrays. Gradients: by
complex steps, d f(x) / dx = Im f(x + i h) / h, so that nothing is derived by
hand. Needs numpy only. The result is deterministic.

A case is the tensors `case/q k v y dy dq dk dv` (q, dq absent: no query), as
the variant has them `w dw`, `u v_pos du dv_pos` and `padded` (U8), and the
strings of __metadata__ `case/variant, causal, window, window_only, grid`.
"""

import json
import os
import struct

import numpy as np

assert np.finfo(np.longdouble).maxexp >= 16384, "needs 80-bit or wider floats"

STEP = np.longdouble(2.0) ** -100


# ---- The operators ----------------------------------------------------------


def allowed_pairs(x, Tq, Tk, causal):
    """[B or 1, Tq, Tk] of 0 and 1: may query t see key j?"""
    pairs = np.ones((1, Tq, Tk), np.longdouble)
    if causal:
        pairs = pairs * np.tri(Tq, Tk)
    if "padded" in x:
        pairs = pairs * (1 - x["padded"].astype(np.longdouble))[:, None, :]
    return pairs


def gated(x, num, den):
    empty = den == 0
    ratio = np.where(empty, 0, num / np.where(empty, 1, den))
    return ratio / (1 + np.exp(-x["q"])) if "q" in x else ratio


def pairwise(x, s):
    """simple, full and local: Eq. 2 with all [Tq, Tk] weights at once."""
    Tk = x["k"].shape[1]
    Tq = x["dy"].shape[1]
    pairs = allowed_pairs(x, Tq, Tk, s["causal"])
    w = np.zeros((Tq, Tk))
    if "u" in x:
        w = np.einsum("tr,jr->tj", x["u"], x["v_pos"])
    elif "w" in x:
        w = x["w"]
    if s["variant"] == "local":
        distance = np.abs(np.arange(Tq)[:, None] - np.arange(Tk)[None, :])
        w = np.where(distance < s["window"], w, 0)
        if s["window_only"]:
            pairs = pairs * (distance < s["window"])
    e = np.exp(x["k"][:, None] + w[None, :, :, None]) * pairs[..., None]
    return gated(x, np.einsum("btjc,bjc->btc", e, x["v"]), e.sum(axis=2))


def correlate(x, kernel, causal):
    """out[b, t, h] = sum_a kernel[h, a] x[b, t - left + a, h], zeros outside.

    x [B, grid..., H, n], kernel [H, sizes...]. left is half of the kernel, or
    all of it but the last tap when causal, which makes that tap t itself.
    """
    sizes = kernel.shape[1:]
    left = [n - 1 if causal else n // 2 for n in sizes]
    pad = [(lo, n - 1 - lo) for lo, n in zip(left, sizes)]
    wide = np.pad(x, [(0, 0)] + pad + [(0, 0), (0, 0)])
    out = np.zeros_like(x)
    for a in np.ndindex(*sizes):
        window = tuple(slice(i, i + n) for i, n in zip(a, x.shape[1:-2]))
        tap = kernel[(slice(None),) + a]
        out = out + wide[(slice(None),) + window] * tap[:, None]
    return out


def conv(x, s):
    """Eq. 6, or the window's part of it alone with window_only."""
    B, T, D = x["v"].shape
    H = x["k"].shape[2]
    e = np.exp(x["k"])
    if "padded" in x:
        e = e * (1 - x["padded"].astype(np.longdouble))[..., None]
    den = e[..., None]
    num = den * x["v"].reshape(B, T, H, D // H)
    sums = []
    for part in (num, den):
        on_grid = part.reshape(B, *s["grid"], *part.shape[2:])
        if s["window_only"]:
            total = correlate(on_grid, np.exp(x["w"]), s["causal"])
            total = total.reshape(part.shape)
        else:
            total = correlate(on_grid, np.exp(x["w"]) - 1, s["causal"])
            total = total.reshape(part.shape) + (
                np.cumsum(part, axis=1)
                if s["causal"]
                else part.sum(axis=1, keepdims=True)
            )
        sums.append(np.broadcast_to(total, (B, T, H, D // H)).reshape(B, T, D))
    return gated(x, *sums)


def output(x, s):
    return (conv if s["variant"] == "conv" else pairwise)(x, s)


def solve(inputs, settings):
    """Adds y and, by complex steps of sum(dy * y), every gradient."""
    x = {
        name: a if name == "padded" else a.astype(np.longdouble)
        for name, a in inputs.items()
    }
    results = dict(inputs, y=output(x, settings))
    for name, a in x.items():
        if name in ("dy", "padded"):
            continue
        gradient = np.zeros(a.shape, np.longdouble)
        for at in np.ndindex(*a.shape):
            moved = a.astype(np.clongdouble)
            moved[at] += 1j * STEP
            loss = np.sum(x["dy"] * output({**x, name: moved}, settings))
            gradient[at] = loss.imag / STEP
        results["d" + name] = gradient
    for name, a in results.items():
        assert np.isfinite(a.astype(np.float64)).all(), name
    return results


# ---- The cases --------------------------------------------------------------


def make_cases():
    """A list of (name, settings, inputs)."""
    random = np.random.RandomState(20210528)
    cases = []

    def normal(*shape, scale=1.0):
        # Rounded to float, so that float kernels can be given the same numbers.
        x = scale * random.standard_normal(shape)
        return x.astype(np.float32).astype(np.float64)

    def spiked(x, heights):
        places = random.permutation(x.size)[: x.size // 3]
        for i, at in enumerate(places):
            x.flat[at] = np.float32(heights[i % len(heights)] + x.flat[at])
        return x

    def inputs(B, Tq, Tk, D, H=None, **parameters):
        x = {"q": normal(B, Tq, D), "k": normal(B, Tk, H or D)}
        return dict(x, v=normal(B, Tk, D), dy=normal(B, Tq, D), **parameters)

    def factors(Tq, Tk, r):
        u = normal(Tq, r, scale=0.7)
        return {"u": u, "v_pos": normal(Tk, r, scale=0.7)}

    def add(name, variant, x, **given):
        defaults = dict(causal=False, window=0, window_only=False, grid=[])
        cases.append((name, dict(defaults, variant=variant, **given), x))

    add("simple", "simple", inputs(2, 9, 9, 5))
    add("simple_causal", "simple", inputs(2, 9, 9, 5), causal=True)
    x = inputs(1, 7, 7, 3)
    del x["q"]
    add("simple_no_query", "simple", x, causal=True)

    add("full", "full", inputs(2, 9, 9, 5, **factors(9, 9, 3)))
    x = inputs(2, 9, 9, 5, **factors(9, 9, 3))
    add("full_causal", "full", x, causal=True)
    add("full_dense_cross", "full", inputs(2, 5, 11, 3, w=normal(5, 11)))

    add("local", "local", inputs(2, 11, 11, 5, w=normal(11, 11)), window=3)
    x = inputs(2, 11, 11, 5, **factors(11, 11, 4))
    add("local_causal", "local", x, window=4, causal=True)
    for causal, name in ((False, "local"), (True, "local_causal")):
        x = inputs(2, 9, 9, 3, w=normal(9, 9))
        only = dict(window=2, window_only=True)
        add(name + "_window_only", "local", x, causal=causal, **only)

    x = inputs(2, 11, 11, 4, H=4, w=normal(4, 5))
    add("conv_1d", "conv", x, grid=[11])
    x = inputs(2, 11, 11, 6, H=3, w=normal(3, 4))
    add("conv_1d_causal", "conv", x, grid=[11], causal=True)
    x = inputs(2, 20, 20, 6, H=2, w=normal(2, 3, 5))
    add("conv_2d", "conv", x, grid=[4, 5])
    x = inputs(1, 12, 12, 4, H=2, w=normal(2, 3, 3))
    add("conv_2d_window_only", "conv", x, grid=[3, 4], window_only=True)
    x = inputs(1, 24, 24, 4, H=2, w=normal(2, 3, 1, 5))
    add("conv_3d", "conv", x, grid=[2, 3, 4])

    # Holes in row 0 (with its first key), no key at all in row 1, an end in 2.
    padded = np.zeros((3, 8), np.uint8)
    padded[0, [0, 3, 4]] = 1
    padded[1] = 1
    padded[2, 5:] = 1
    for causal, name in ((False, "padding"), (True, "padding_causal")):
        x = inputs(3, 8, 8, 3, w=normal(8, 8), padded=padded)
        add(name, "local", x, window=3, causal=causal)
    x = inputs(3, 8, 8, 4, H=2, w=normal(2, 3, 3), padded=padded)
    add("padding_conv", "conv", x, grid=[2, 4])

    for variant, causal in (("simple", True), ("full", False), ("local", True)):
        x = inputs(2, 13, 13, 3)
        spiked(x["k"], [95, 120, 1e4, -1e4])
        if variant != "simple":
            x["w"] = spiked(normal(13, 13), [1e3, -1e3])
        add("hostile_" + variant, variant, x, window=5, causal=causal)
    return cases


# ---- The file ---------------------------------------------------------------


def write_safetensors(path, tensors, metadata):
    """u64 little-endian header length, JSON header padded to 8 bytes, data."""
    order = sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n))
    header = {"__metadata__": metadata}
    at = 0
    for name in order:
        a = tensors[name]
        header[name] = {
            "dtype": {"float64": "F64", "uint8": "U8"}[a.dtype.name],
            "shape": list(a.shape),
            "data_offsets": [at, at + a.nbytes],
        }
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            a = tensors[name]
            f.write(a.astype(a.dtype.newbyteorder("<")).tobytes())


def main():
    tensors, metadata = {}, {}
    for case, settings, inputs in make_cases():
        for name, a in solve(inputs, settings).items():
            kind = np.uint8 if name == "padded" else np.float64
            tensors[case + "/" + name] = np.ascontiguousarray(a.astype(kind))
        metadata[case + "/variant"] = settings["variant"]
        metadata[case + "/grid"] = ",".join(map(str, settings["grid"]))
        for name in ("causal", "window", "window_only"):
            metadata[case + "/" + name] = str(int(settings[name]))
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, "golden.safetensors")
    write_safetensors(path, tensors, metadata)
    print(path, os.path.getsize(path), "bytes,", len(tensors), "tensors")


if __name__ == "__main__":
    main()
