"""Loads a model with the real `safetensors` package, as a program does that serves it, and says how long that took.

load_model.py MODEL [REFERENCE]: prints one line of JSON, {"seconds": ..., "bytes": ..., "equal": ...}. With a reference, each byte of each
tensor is compared with that of the other file, after the time was taken.
"""

import json
import sys
import time

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file


def main() -> None:
    model, *reference = sys.argv[1:]
    began = time.perf_counter()
    tensors = load_file(model)
    seconds = time.perf_counter() - began
    equal = None
    if reference:
        with safe_open(reference[0], framework="numpy") as other:
            names = set(other.keys())
            equal = names == set(tensors) and all(
                numpy.array_equal(tensors[name].view(numpy.uint8), other.get_tensor(name).view(numpy.uint8))
                for name in names
            )
    print(json.dumps({"seconds": seconds, "bytes": sum(tensor.nbytes for tensor in tensors.values()), "equal": equal}))


main()
