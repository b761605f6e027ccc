"""NIXL's plug-in for files, with each of its three ways to have several reads under way: from a file into memory of the host."""

import os
from pathlib import Path

import numpy
from common import ran
from mounted import MIB, SIZE, model
from nixl_cu12 import nixl_agent, nixl_agent_config

WAYS = ("use_aio", "use_uring", "use_posix_aio")


def read(agent: nixl_agent, path: Path, begin: int, buffer: numpy.ndarray) -> None:
    """What lies at ``begin``, in descriptors of a MiB."""
    pieces = [(at, min(MIB, buffer.nbytes - at)) for at in range(0, buffer.nbytes, MIB)]
    memory, file = buffer.ctypes.data, os.open(path, os.O_RDONLY)
    registered = [agent.register_memory([(memory, buffer.nbytes, 0, "")], "DRAM")]
    registered.append(agent.register_memory([(0, begin + buffer.nbytes, file, "")], "FILE"))
    local = agent.get_xfer_descs([(memory + at, length, 0) for at, length in pieces], "DRAM")
    remote = agent.get_xfer_descs([(begin + at, length, file) for at, length in pieces], "FILE")
    handle = agent.initialize_xfer("READ", local, remote, agent.name)
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    handle.release()
    for descriptors in registered:
        agent.deregister_memory(descriptors)
    os.close(file)
    assert state == "DONE", state


with model() as at:
    done = []
    for way in WAYS:
        agent = nixl_agent(way, nixl_agent_config(backends=[]))
        try:
            agent.create_backend("POSIX", {way: "true"})
        except Exception as error:
            # Of a kernel or a container that allows no io_uring.
            print(f"{way}: left out, since {type(error).__name__}: {error}")
            continue
        buffer = numpy.zeros(SIZE, numpy.uint8)
        read(agent, at.mounted, at.begin, buffer)
        at.check(dict(zip(at.digests, numpy.split(buffer, len(at.digests)), strict=True)))
        at.compare(f"NIXL, {way}", lambda path, agent=agent, buffer=buffer: read(agent, path, at.begin, buffer))
        done.append(f"`{way}`")
    assert done, "it can read in no way"
    ran("nixl-cu12", f"plug-in `POSIX` ({', '.join(done)}): file to memory of the host")
