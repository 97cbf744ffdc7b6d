"""The Attention Free Transformer for PyTorch.

    y_t = act(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)

Functions on tensors, differentiable, with memory linear in the sequence:

    aft.simple   w = 0
    aft.full     any w, dense or factorised as u v_pos^T
    aft.local    the same, inside a window of positions; 0 outside
    aft.conv     w by relative position, one kernel per head, on 1d to 3d grids
    aft.one_tap  conv with kernels of one tap each

Layers with the projections around them, to replace multi-head attention:
aft.nn.AFTSimple, AFTFull, AFTLocal, AFTConv.

    import torch, aft
    layer = aft.nn.AFTLocal(512, max_len=1024, window=32, causal=True)
    y = layer(torch.randn(8, 1024, 512))            # [8, 1024, 512]

Importing the package loads the operators (torch.ops.aft.*) from libaft.so: from
the file named by the environment variable AFT_LIBRARY, or, if it is not set,
from the package directory, the lib directory above it, or build/release of a
checkout.
"""

import os
import sysconfig
from pathlib import Path

import torch

_NAME = "libaft.so"


def _places():
    """Candidate paths of libaft.so, in order of preference."""
    named = os.environ.get("AFT_LIBRARY")
    if named:  # no fallback for an explicit path
        return [Path(named).expanduser().absolute()]
    package = Path(__file__).resolve().parent
    places = [package / _NAME]
    # <prefix>/lib/python3/dist-packages/aft: a lib directory is above.
    for above in package.parents:
        if above.name in ("lib", "lib64"):
            places.append(above / _NAME)
            multiarch = sysconfig.get_config_var("MULTIARCH")
            if multiarch:
                places.append(above / multiarch / _NAME)
            if above.name == "lib":
                places.append(above.parent / "lib64" / _NAME)
            break
    places.append(package.parent.parent / "build" / "release" / _NAME)
    return places


def _load():
    """Registers torch.ops.aft.*. Returns the path of the library."""
    if hasattr(torch.ops.aft, "simple"):  # already registered
        return None
    places = _places()
    for place in places:
        if not place.is_file():
            continue
        try:
            torch.ops.load_library(str(place))
        except OSError as error:
            raise ImportError(
                f"aft: cannot load {place} into torch {torch.__version__}: "
                f"{error}. It must be built against this torch."
            ) from error
        return str(place)
    raise ImportError(
        f"aft: {_NAME} not found. Looked at:"
        + "".join(f"\n  {place}" for place in places)
        + "\nSet AFT_LIBRARY to the file, or build it with `make build`."
    )


#: The libaft.so that was loaded; None if the operators were already registered.
library_path = _load()

from .functional import conv, full, local, one_tap, simple, single  # noqa: E402
from . import nn  # noqa: E402

__all__ = [
    "conv", "full", "library_path", "local", "nn", "one_tap", "simple", "single",
]
