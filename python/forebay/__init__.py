"""Read objects through Forebay's cache, without a mount.

>>> import forebay
>>> with forebay.Client(up="file:///srv/datasets") as client:
...     print(client.read("/labels.txt"))

``Client`` is the synchronous interface, ``forebay.aio.AsyncClient`` the same for asyncio. Sizes and offsets are bytes, times
nanoseconds since 1970 (UTC). Errors are ``OSError`` with an errno, the path and what to do; ``ValueError`` and ``TypeError`` are for
calls that make no sense.
"""

from forebay._interpreter import refuse_subinterpreters

refuse_subinterpreters()

from forebay._client import Client, File  # noqa: E402
from forebay._entry import Entry  # noqa: E402
from forebay._native import View, __version__  # noqa: E402
from forebay._prefetch import Prefetch  # noqa: E402
from forebay._streamer import streamer_library  # noqa: E402
from forebay._upload import Upload  # noqa: E402

__all__ = ["Client", "Entry", "File", "Prefetch", "Upload", "View", "__version__", "streamer_library"]
