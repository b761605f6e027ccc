"""Distributed checkpoints of PyTorch, saved and loaded by its fsspec storage."""

import torch
import torch.distributed.checkpoint as checkpoint
from common import namespace, ran
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

with namespace() as place:
    torch.manual_seed(1)
    state = {"model": {"weight": torch.rand(2000, 1000), "bias": torch.rand(1000)}, "step": 7}
    writer = FsspecWriter("forebay:///checkpoints/step-7", **place.options)
    checkpoint.save(state, storage_writer=writer, no_dist=True)
    assert (place.origin / "checkpoints" / "step-7" / ".metadata").exists()
    loaded = {"model": {"weight": torch.zeros(2000, 1000), "bias": torch.zeros(1000)}, "step": 0}
    reader = FsspecReader("forebay:///checkpoints/step-7", **place.options)
    checkpoint.load(loaded, storage_reader=reader, no_dist=True)
    assert torch.equal(loaded["model"]["weight"], state["model"]["weight"]) and loaded["step"] == 7
    assert torch.equal(loaded["model"]["bias"], state["model"]["bias"])
    ran("torch", "`distributed.checkpoint`: `FsspecWriter`, `FsspecReader`")
