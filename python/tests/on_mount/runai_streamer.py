"""Run:ai's library that streams models, as of today: into one buffer, by threads of its own."""

import numpy
from common import ran
from mounted import SIZE, model
from streamers import Streamer, their_streamer

library = their_streamer()
assert library is not None
with model() as at:
    streamer = Streamer(library)
    buffer = numpy.zeros(SIZE, numpy.uint8)
    streamer.load(str(at.mounted), at.ranges(), buffer)
    at.check(dict(zip(at.digests, numpy.split(buffer, len(at.digests)), strict=True)))
    at.compare("runai-model-streamer", lambda path: streamer.load(str(path), at.ranges(), buffer))
    streamer.close()
    ran("runai-model-streamer", "`libstreamer.so`: all tensors into one buffer")
