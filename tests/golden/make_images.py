"""Writes images/ beside this script: small PNG and JPEG files of every kind,
and expected.safetensors, what must come out of them, from Pillow.

Tensors, all U8 of shape [height, width, 3]:
    <file name>                     the pixels of that file
    resize/<n>/in, resize/<n>/out   Image.resize, BICUBIC
    cover/<n>/in, cover/<n>/out     resized to cover, the centre cut out

Where Pillow cannot write a kind of PNG, write_png below does; where it cannot
read one (16 bits), the pixels come from the formula beside it. Needs Pillow
only. The result is deterministic for one version of Pillow and its libraries;
made with Pillow 9.4 and libjpeg-turbo 2.1.5.
"""

import io
import json
import os
import random
import struct
import zlib

from PIL import Image, PngImagePlugin

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "images")
expected = {}  # name: (height, width, bytes)


def make_image(height, width, mode="RGB", noise=40, seed=1):
    """Waves, different in every channel, with some noise on them."""
    rng = random.Random(seed)
    channels = len(Image.new(mode, (1, 1)).getbands())
    out = bytearray()
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                wave = (x * (7 + 3 * c) + y * (11 - 2 * c)) % 256
                wave = 255 - 2 * wave if wave < 128 else 2 * wave - 256
                noisy = wave + rng.randint(-noise, noise)
                out.append(max(0, min(255, noisy)))
    return Image.frombytes(mode, (width, height), bytes(out))


def save(name, data):
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(data)


def expect(name, image):
    """image: what Pillow has, as RGB."""
    assert image.mode == "RGB"
    expected[name] = (image.height, image.width, image.tobytes())


def over_white(image):
    """Blended over white: paste rounds c a / 255 to the nearest."""
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image.convert("RGB"), mask=image.getchannel("A"))
    return white


# ---- PNG --------------------------------------------------------------------


def pillow_png(name, image, pixels, **options):
    data = io.BytesIO()
    image.save(data, "PNG", **options)
    save(name, data.getvalue())
    expect(name, pixels)


def chunk(kind, data):
    crc = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + crc


ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)


def write_png(name, rows, bits, colour, extra=(), interlaced=False):
    """rows[y][x]: the samples of a pixel. Filter 0 throughout. Returns what
    Pillow makes of the file."""
    height, width = len(rows), len(rows[0])
    raw = bytearray()
    for x0, y0, dx, dy in ADAM7 if interlaced else ((0, 0, 1, 1),):
        for row in rows[y0::dy]:
            samples = [s for pixel in row[x0::dx] for s in pixel]
            if not samples:
                continue
            text = "".join(format(s, f"0{bits}b") for s in samples)
            text += "0" * (-len(text) % 8)
            raw.append(0)
            raw += int(text, 2).to_bytes(len(text) // 8, "big")
    header = struct.pack(
        ">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced)
    )
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    data += b"".join(chunk(*e) for e in extra)
    data += chunk(b"IDAT", zlib.compress(bytes(raw), 9)) + chunk(b"IEND", b"")
    save(name, data)
    return Image.open(io.BytesIO(data))


def rows_of(image):
    bands = len(image.getbands())
    data = image.tobytes()
    stride = image.width * bands
    return [
        [
            tuple(data[y * stride + x * bands + c] for c in range(bands))
            for x in range(image.width)
        ]
        for y in range(image.height)
    ]


def formula(name, rows, pixel):
    """Expects pixel(samples), three numbers, for every pixel of rows."""
    out = bytes(v for row in rows for samples in row for v in pixel(samples))
    expected[name] = (len(rows), len(rows[0]), out)


def to8(value):
    return (value * 2 + 257) // (2 * 257)  # round(value / 257)


def blended(colour, alpha):
    top = colour * alpha + 255 * (255 - alpha)
    return (top * 2 + 255) // (2 * 255)


def pngs():
    rng = random.Random(2)
    rgb = make_image(13, 19)
    # A gamma, which must be ignored.
    info = PngImagePlugin.PngInfo()
    info.add(b"gAMA", struct.pack(">I", 100000))
    pillow_png("rgb.png", rgb, rgb, pnginfo=info)
    grey = make_image(9, 21, "L")
    pillow_png("grey.png", grey, grey.convert("RGB"))
    la = make_image(10, 11, "LA", noise=90)
    pillow_png("grey_alpha.png", la, over_white(la))
    rgba = make_image(16, 15, "RGBA", noise=90)
    pillow_png("rgba.png", rgba, over_white(rgba))

    palette = rgb.quantize(20)
    alphas = bytes(rng.randrange(256) for _ in range(12))  # the rest: 255
    with_alpha = palette.copy()
    with_alpha.info["transparency"] = alphas
    pillow_png("palette.png", palette, palette.convert("RGB"))
    pillow_png(
        "palette_alpha.png",
        palette,
        over_white(with_alpha),
        transparency=alphas,
    )

    # 1, 2 and 4 bits, with widths that leave the last byte partly used.
    for bits in (1, 2, 4):
        top = (1 << bits) - 1
        rows = [[(rng.randint(0, top),) for _ in range(11)] for _ in range(5)]
        name = f"grey{bits}.png"
        write_png(name, rows, bits, 0)
        formula(name, rows, lambda s: [s[0] * 255 // top] * 3)
        colours = bytes(rng.randrange(256) for _ in range(3 * (top + 1)))
        name = f"palette{bits}.png"
        # Pillow agrees on these.
        image = write_png(name, rows, bits, 3, [(b"PLTE", colours)])
        expect(name, image.convert("RGB"))
    rows = [[(rng.randrange(16),) for _ in range(11)] for _ in range(9)]
    write_png(
        "palette4_interlaced.png",
        rows,
        4,
        3,
        [(b"PLTE", bytes(range(48))), (b"tRNS", bytes(range(0, 160, 16)))],
        interlaced=True,
    )
    formula(
        "palette4_interlaced.png",
        rows,
        lambda s: [
            blended(3 * s[0] + c, 16 * s[0] if s[0] < 10 else 255)
            for c in range(3)
        ],
    )
    image = write_png("interlaced.png", rows_of(rgb), 8, 2, interlaced=True)
    assert image.convert("RGB").tobytes() == rgb.tobytes()
    expect("interlaced.png", rgb)
    # One transparent colour; similar colours are opaque.
    rows = rows_of(make_image(6, 7))
    rows[2][3] = key = (200, 100, 50)
    rows[2][4] = (200, 100, 51)
    trns = struct.pack(">HHH", *key)
    write_png("rgb_key.png", rows, 8, 2, [(b"tRNS", trns)])
    formula("rgb_key.png", rows, lambda s: (255,) * 3 if s == key else s)

    # 16 bits: all values next to a rounding boundary, and some others.
    grey16 = [(v * 257 + d,) for v in range(256) for d in (-129, -128, 0, 128)]
    grey16 = [(max(0, min(65535, v)),) for (v,) in grey16]
    rows = [grey16[i : i + 32] for i in range(0, len(grey16), 32)]
    write_png("grey16.png", rows, 16, 0)
    formula("grey16.png", rows, lambda s: [to8(s[0])] * 3)
    rows = [
        [tuple(rng.randrange(65536) for _ in range(4)) for _ in range(7)]
        for _ in range(8)
    ]
    write_png("rgba16.png", rows, 16, 6)
    formula(
        "rgba16.png",
        rows,
        lambda s: [blended(to8(c), to8(s[3])) for c in s[:3]],
    )
    # The transparent colour is compared with all 16 bits.
    rows = [[s[:3] for s in row] for row in rows]
    rows[1][1] = key = (1000, 40000, 7)
    rows[1][2] = (1000, 40000, 8)
    trns = struct.pack(">HHH", *key)
    write_png("rgb16_key.png", rows, 16, 2, [(b"tRNS", trns)])
    formula(
        "rgb16_key.png",
        rows,
        lambda s: (255,) * 3 if s == key else [to8(c) for c in s],
    )


# ---- JPEG -------------------------------------------------------------------


def jpeg(name, image, **options):
    data = io.BytesIO()
    image.save(data, "JPEG", **options)
    return jpeg_bytes(name, data.getvalue())


def jpeg_bytes(name, data):
    save(name, data)
    # Of CMYK, convert makes (255 - c) (255 - k) / 255, rounded, as image.h
    # says; it always takes the numbers in the file as Adobe's.
    expect(name, Image.open(io.BytesIO(data)).convert("RGB"))
    return data


def jpegs():
    rgb = make_image(21, 35, noise=5)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotation by 90 degrees, which must be ignored
    jpeg("baseline.jpg", rgb, quality=85, subsampling=2, exif=exif)
    jpeg("progressive.jpg", rgb, quality=90, progressive=True)
    jpeg("full.jpg", rgb, quality=95, subsampling=0)
    jpeg("grey.jpg", make_image(17, 9, "L", noise=5), quality=80)
    cmyk = jpeg("cmyk.jpg", make_image(18, 20, "CMYK", noise=5), quality=90)
    # APP14: length, "Adobe", version, two flags, transform. 2: YCCK.
    adobe = cmyk.index(b"Adobe")
    assert cmyk[adobe - 4 : adobe] == b"\xff\xee\x00\x0e"
    assert cmyk[adobe + 11] == 0
    jpeg_bytes("ycck.jpg", cmyk[: adobe + 11] + b"\x02" + cmyk[adobe + 12 :])
    # Without the marker, 0 means no ink. Pillow ignores this, so the expected image
    # is that of the inverse.
    name = "cmyk_plain.jpg"
    plain = cmyk[: adobe - 4] + cmyk[adobe + 12 :]
    save(name, plain)
    image = Image.open(io.BytesIO(plain))
    assert image.mode == "CMYK"
    inverse = Image.eval(image, lambda v: 255 - v)
    expect(name, inverse.convert("RGB"))


# ---- Size -------------------------------------------------------------------


def sizes():
    cases = (  # height, width, new height, new width
        (37, 23, 16, 16),
        (23, 37, 16, 16),
        (8, 8, 13, 29),
        (32, 32, 16, 16),
        (32, 32, 31, 33),
        (5, 7, 1, 1),
        (1, 1, 6, 4),
        (2, 3, 17, 5),
        (9, 14, 9, 5),
        (9, 14, 20, 14),
        (9, 14, 9, 14),
        (101, 3, 7, 70),
    )
    for n, (h, w, height, width) in enumerate(cases):
        # Strong noise, so that sums leave 0 .. 255 and clipping matters.
        image = make_image(h, w, noise=255, seed=n)
        expect(f"resize/{n}/in", image)
        new = image.resize((width, height), Image.Resampling.BICUBIC)
        expect(f"resize/{n}/out", new)

    cases = (
        (20, 30, 16, 16),
        (30, 20, 16, 16),
        (21, 32, 10, 9),
        (7, 10, 5, 5),  # the side is 7.14
        (4, 5, 6, 6),  # the side is 7.5, one pixel excess on each side
        (5, 4, 6, 6),
        (3, 8, 12, 5),
        (16, 16, 16, 16),
        (10, 30, 10, 11),  # odd excess
        (30, 10, 11, 10),
    )
    for n, (h, w, height, width) in enumerate(cases):
        image = make_image(h, w, noise=120, seed=100 + n)
        expect(f"cover/{n}/in", image)
        if height * w >= width * h:
            full = ((2 * w * height + h) // (2 * h), height)
        else:
            full = (width, (2 * h * width + w) // (2 * w))
        new = image.resize(full, Image.Resampling.BICUBIC)
        left, top = (full[0] - width) // 2, (full[1] - height) // 2
        new = new.crop((left, top, left + width, top + height))
        expect(f"cover/{n}/out", new)


# ---- The file ---------------------------------------------------------------


def write_expected():
    header, data = {}, b""
    for name, (height, width, pixels) in sorted(expected.items()):
        assert len(pixels) == height * width * 3, name
        header[name] = {
            "dtype": "U8",
            "shape": [height, width, 3],
            "data_offsets": [len(data), len(data) + len(pixels)],
        }
        data += pixels
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    save("expected.safetensors", struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    pngs()
    jpegs()
    sizes()
    write_expected()
