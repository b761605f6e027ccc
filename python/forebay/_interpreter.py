"""Which interpreter of the process this is."""

import importlib
from typing import Any


def refuse_subinterpreters() -> None:
    """Raise ``ImportError`` in every interpreter but the main one.

    The native module has state that belongs to one interpreter. Without this, whichever imports it first would have it, and another
    one would be told so in words of PyO3's.
    """
    # Its name since 3.13, and before.
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        current: Any = interpreters.get_current()
        # Since 3.13 a tuple that begins with the number.
        number: Any = current[0] if hasattr(current, "__getitem__") else current
        if int(number) != 0:
            raise ImportError(
                "forebay runs in the main interpreter only, not in a subinterpreter; use threads, or processes that are "
                "started with `spawn`",
                name="forebay",
            )
        return
