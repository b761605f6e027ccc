"""Run:ai's library that streams models, as of today."""

from streamers import Streamer
from streaming import tried

tried(Streamer, "runai-model-streamer")
