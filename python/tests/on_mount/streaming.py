"""What both releases of Run:ai's library are tried with: all tensors of a model, into one buffer."""

import numpy
from common import ran
from mounted import SIZE, model
from streamers import EarlierStreamer, Streamer, their_streamer


def tried(interface: type[Streamer | EarlierStreamer], name: str, version: str | None = None) -> None:
    """Raises if a byte is wrong. `version`: of what was tried, where it is not what `name` leads to."""
    library = their_streamer()
    assert library is not None
    with model() as at:
        streamer = interface(library)
        buffer = numpy.zeros(SIZE, numpy.uint8)
        streamer.load(str(at.mounted), at.ranges(), buffer)
        at.check(dict(zip(at.digests, numpy.split(buffer, len(at.digests)), strict=True)))
        at.compare(name, lambda path: streamer.load(str(path), at.ranges(), buffer))
        streamer.close()
        ran(name, "`libstreamer.so`: all tensors into one buffer", version)
