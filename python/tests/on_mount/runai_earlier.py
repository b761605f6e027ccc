"""Run:ai's library that streams models, before its C interface changed."""

import importlib.metadata

import numpy
from common import ran
from mounted import SIZE, model
from streamers import EarlierStreamer, their_streamer

library = their_streamer()
assert library is not None
with model() as at:
    streamer = EarlierStreamer(library)
    buffer = numpy.zeros(SIZE, numpy.uint8)
    streamer.load(str(at.mounted), at.ranges(), buffer)
    at.check(dict(zip(at.digests, numpy.split(buffer, len(at.digests)), strict=True)))
    at.compare("runai-model-streamer, the earlier", lambda path: streamer.load(str(path), at.ranges(), buffer))
    streamer.close()
    version = importlib.metadata.version("runai-model-streamer")
    ran("runai-model-streamer, earlier", "`libstreamer.so`: all tensors into one buffer", version)
