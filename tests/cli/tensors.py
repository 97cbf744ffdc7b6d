"""Safetensors files of 32-bit floats: name to (shape, list of values)."""

import json
import struct
from pathlib import Path


def load_tensors(path):
    """Returns the tensors and the metadata."""
    raw = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    metadata, out = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        first, last = entry["data_offsets"]
        body = raw[8 + length + first : 8 + length + last]
        out[name] = (entry["shape"], list(struct.unpack(f"<{len(body) // 4}f", body)))
    return out, metadata


def save_tensors(path, tensors):
    header, data = {}, b""
    for name, (shape, numbers) in tensors.items():
        body = struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(body)]}  # fmt: skip
        data += body
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)
