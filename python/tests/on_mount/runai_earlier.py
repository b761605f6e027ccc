"""Run:ai's library that streams models, before its C interface changed."""

import importlib.metadata

from streamers import EarlierStreamer
from streaming import tried

tried(EarlierStreamer, "runai-model-streamer, earlier", importlib.metadata.version("runai-model-streamer"))
