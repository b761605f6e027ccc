"""The library for Run:ai's model streamer."""

from __future__ import annotations

import os

from forebay import _native


def streamer_library() -> str:
    """The absolute path that ``STREAMER_LIBRARY`` has to be, for whatever loads models by ``runai_model_streamer`` to read by Forebay.

    It is the native module of this package, which has the functions of ``libstreamer.so``, too. Processes of this Python can load it. It
    has to be in the environment before ``runai_model_streamer`` is imported.
    """
    return os.path.abspath(_native.__file__)
