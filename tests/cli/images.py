"""Writes and reads image files for tests: PNG, JPEG, batches of CIFAR-10. An image
is a list of rows from the top, each the bytes of its pixels."""

import random
import struct
import zlib
from pathlib import Path

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RECORD, RECORDS = 3073, 10000  # of CIFAR-10: bytes per record, records per batch
RANDOM = random.Random(1)


def noise(height, width):
    return [RANDOM.randbytes(3 * width) for _ in range(height)]


def png(rows, depth=8, kind=2, extra=()):
    """Encodes rows of packed samples. kind: 0 grey, 2 RGB, 3 palette, 4 grey and alpha,
    6 RGB and alpha; extra: chunks before the pixels."""

    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    size = struct.pack(">II", 8 * len(rows[0]) // depth // channels, len(rows))
    return (
        SIGNATURE
        + chunk(b"IHDR", size + bytes([depth, kind, 0, 0, 0]))
        + b"".join(chunk(*each) for each in extra)
        + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
        + chunk(b"IEND", b"")
    )


def jpeg(colour):
    """8 x 8 pixels of one colour, exactly: 1 channel is grey, 3 are R, G, B, 4 are
    CMYK with Adobe's marker. Quantised by 1; each block has only its mean."""

    def part(marker, data):
        return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data

    def table(kind, length, symbols):
        counts = [len(symbols) if i + 1 == length else 0 for i in range(16)]
        return part(0xC4, bytes([kind, *counts, *symbols]))

    bits = ""
    for value in colour:
        mean = 8 * (value - 128)
        size = abs(mean).bit_length()
        bits += f"{size:04b}"
        if size:
            bits += f"{mean if mean > 0 else mean + (1 << size) - 1:0{size}b}"
        bits += "0"  # the end of the block
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    names = {1: b"\1", 3: b"RGB", 4: b"CMYK"}[len(colour)]
    channels = b"".join(bytes([c, 0x11, 0]) for c in names)
    scan = b"".join(bytes([c, 0]) for c in names)
    adobe = part(0xEE, b"Adobe" + bytes([0, 100, 0, 0, 0, 0, 0]))
    return (
        b"\xff\xd8"
        + (adobe if len(colour) == 4 else b"")
        + part(0xDB, b"\0" + b"\1" * 64)
        + part(0xC0, bytes([8, 0, 8, 0, 8, len(names)]) + channels)
        + table(0x00, 4, range(12))
        + table(0x10, 1, [0])
        + part(0xDA, bytes([len(names)]) + scan + b"\0\x3f\0")
        + data
        + b"\xff\xd9"
    )


def read_png(path):
    """The rows of a PNG of 8-bit RGB without interlacing."""
    data = Path(path).read_bytes()
    assert data[:8] == SIGNATURE, data[:8]
    at, kinds, packed = 8, [], b""
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        assert len(body) == length
        (sum_,) = struct.unpack_from(">I", data, at + 8 + length)
        assert sum_ == zlib.crc32(kind + body), kind
        kinds.append(kind)
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", body)
            assert rest == [8, 2, 0, 0, 0], rest
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    assert kinds[0] == b"IHDR" and kinds[-1] == b"IEND", kinds
    raw, stride = zlib.decompress(packed), 3 * width
    assert len(raw) == height * (1 + stride), (len(raw), height, width)
    rows, above = [], bytes(stride)
    for y in range(height):
        kind, *line = raw[y * (1 + stride) : (y + 1) * (1 + stride)]
        if kind == 2:  # as below, but fast
            line = [(x + b) & 255 for x, b in zip(line, above)]
        for i in range(stride if kind in (1, 3, 4) else 0):
            b = above[i]
            a, c = (line[i - 3], above[i - 3]) if i > 2 else (0, 0)
            if kind == 4:
                p = a + b - c
                near = min((a, b, c), key=lambda x: abs(p - x))  # the first of equals
            else:
                near = a if kind == 1 else (a + b) // 2
            line[i] = (line[i] + near) & 255
        assert kind <= 4, kind
        rows.append(bytes(line))
        above = line
    return rows


def folder(path, images):
    path.mkdir(parents=True)
    for i, rows in enumerate(images):
        (path / f"{i:03}.png").write_bytes(png(rows))
    return path


def cifar(path):
    """Writes a batch of noise. Returns its first two and last two images."""
    raw = bytearray(RANDOM.randbytes(RECORDS * RECORD))
    raw[::RECORD] = bytes(i % 10 for i in range(RECORDS))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    out = []
    for i in (0, 1, RECORDS - 2, RECORDS - 1):
        planes = raw[i * RECORD + 1 : (i + 1) * RECORD]
        pixels = zip(planes[:1024], planes[1024:2048], planes[2048:])
        flat = bytes(value for pixel in pixels for value in pixel)
        out.append([flat[96 * y : 96 * y + 96] for y in range(32)])
    return out
