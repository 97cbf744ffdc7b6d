"""Writes augment.safetensors next to this script: the results of Pillow for the 15
operations of RandAugment on small images.

Tensors, all U8 of shape [height, width, 3]:
    <image>                        the image itself
    <image>/<operation>/<value>    the operation with that argument
    level/<operation>/<m>/<sign>   the image "clip", with the argument that
                                   timm derives from magnitude m and a sign
An operation without an argument has value 0. Needs Pillow only. The result is
deterministic; made with Pillow 9.4.
"""

import json
import os
import random
import struct

from PIL import Image, ImageEnhance, ImageOps

HERE = os.path.dirname(os.path.abspath(__file__))
FILL = (124, 116, 104)
expected = {}  # name: image


# ---- The operations ---------------------------------------------------------


def affine(image, *matrix):
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix,
        resample=Image.Resampling.BICUBIC,
        fillcolor=FILL,
    )


def rotate(image, degrees):
    return image.rotate(
        degrees, resample=Image.Resampling.BICUBIC, fillcolor=FILL
    )


def solarize_add(image, add):
    table = [min(255, v + add) if v < 128 else v for v in range(256)]
    return image.point(3 * table)


OPERATIONS = {
    "auto_contrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "invert": lambda image, _: ImageOps.invert(image),
    "rotate": rotate,
    "posterize": ImageOps.posterize,
    "solarize": ImageOps.solarize,
    "solarize_add": solarize_add,
    "colour": lambda image, f: ImageEnhance.Color(image).enhance(f),
    "contrast": lambda image, f: ImageEnhance.Contrast(image).enhance(f),
    "brightness": lambda image, f: ImageEnhance.Brightness(image).enhance(f),
    "sharpness": lambda image, f: ImageEnhance.Sharpness(image).enhance(f),
    "shear_x": lambda image, f: affine(image, 1, f, 0, 0, 1, 0),
    "shear_y": lambda image, f: affine(image, 1, 0, 0, f, 1, 0),
    "translate_x": lambda image, p: affine(image, 1, 0, p, 0, 1, 0),
    "translate_y": lambda image, p: affine(image, 1, 0, 0, 0, 1, p),
}

ENHANCE = (0.0, 0.1, 0.73, 1.0, 1.81, 3.5)
SHEAR = (0.27, -0.27, 0.013, -0.9)
TRANSLATE = (3.0, -1.0, 2.6, -3.35, 0.04)
VALUES = {
    "auto_contrast": (0,),
    "equalize": (0,),
    "invert": (0,),
    # Pillow handles quarter turns separately.
    "rotate": (0.0, 27.0, -13.7, 1e-7, 90.0, 180.0, -90.0, 400.0),
    "posterize": (0, 1, 3, 8),
    "solarize": (0, 26, 128, 256),
    "solarize_add": (0, 50, 110, 200),
    "colour": ENHANCE,
    "contrast": ENHANCE,
    "brightness": ENHANCE,
    "sharpness": ENHANCE,
    "shear_x": SHEAR,
    "shear_y": SHEAR,
    "translate_x": TRANSLATE,
    "translate_y": TRANSLATE,
}

LARGE = {"auto_contrast": (0,), "equalize": (0,), "rotate": (27.0,)}


def argument(operation, m, sign, size):
    """The argument that timm's "increasing" RandAugment derives from a magnitude."""
    level = m / 10.0
    width, height = size
    return {
        "rotate": sign * level * 30.0,
        "posterize": 4 - int(level * 4),
        "solarize": 256 - int(level * 256),
        "solarize_add": int(level * 110),
        "colour": max(0.1, 1.0 + sign * (level * 0.9)),
        "contrast": max(0.1, 1.0 + sign * (level * 0.9)),
        "brightness": max(0.1, 1.0 + sign * (level * 0.9)),
        "sharpness": max(0.1, 1.0 + sign * (level * 0.9)),
        "shear_x": sign * (level * 0.3),
        "shear_y": sign * (level * 0.3),
        "translate_x": sign * (level * 0.45) * width,
        "translate_y": sign * (level * 0.45) * height,
    }.get(operation)


# ---- The images -------------------------------------------------------------


def make_image(height, width, value):
    """An image of value(y, x, c), clipped to 0 .. 255."""
    data = bytes(
        max(0, min(255, int(value(y, x, c))))
        for y in range(height)
        for x in range(width)
        for c in range(3)
    )
    return Image.frombytes("RGB", (width, height), data)


def make_images():
    rng = random.Random(1)
    noise = rng.randint
    return {
        "waves": make_image(
            15,
            19,
            lambda y, x, c: 2 * abs((x * (7 + 3 * c) + 11 * y) % 256 - 128)
            + noise(-20, 20),
        ),
        # Few values, and one constant channel.
        "grey": make_image(
            11, 14, lambda y, x, c: 90 + (noise(0, 9) if c != 1 else 7)
        ),
        # Every operation has to clip somewhere.
        "clip": make_image(
            9, 17, lambda y, x, c: noise(0, 4) // 4 * 255 + noise(-60, 60)
        ),
        "square": make_image(8, 8, lambda y, x, c: noise(0, 255)),
        "row": make_image(1, 13, lambda y, x, c: noise(0, 255)),
        "column": make_image(6, 1, lambda y, x, c: noise(0, 255)),
        "pixel": make_image(1, 1, lambda y, x, c: 200 - 60 * c),
        "pair": make_image(2, 2, lambda y, x, c: noise(0, 255)),
        # equalize has an effect only with at least 255 pixels.
        "large": make_image(
            33,
            31,
            lambda y, x, c: 30 + 2 * x + 60 * c + rng.gauss(0, 10),
        ),
    }


def write_expected():
    header, data = {}, b""
    for name, image in sorted(expected.items()):
        assert image.mode == "RGB"
        pixels = image.tobytes()
        header[name] = {
            "dtype": "U8",
            "shape": [image.height, image.width, 3],
            "data_offsets": [len(data), len(data) + len(pixels)],
        }
        data += pixels
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(HERE, "augment.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    for name, image in make_images().items():
        expected[name] = image
        for operation, values in VALUES.items():
            if name == "large":
                values = LARGE.get(operation, ())
            for value in values:
                new = OPERATIONS[operation](image, value)
                expected[f"{name}/{operation}/{value!r}"] = new
    clip = expected["clip"]
    for operation, make in OPERATIONS.items():
        for m in (0.0, 3.3, 9.0, 10.0):
            for sign, text in ((1, "+"), (-1, "-")):
                new = make(clip, argument(operation, m, sign, clip.size))
                expected[f"level/{operation}/{m!r}/{text}"] = new
    write_expected()
