"""GPUs, by the names that programs have for them."""

from __future__ import annotations


def device_number(device: int | str | None) -> int | None:
    """The number of a GPU: as it is, or of ``cuda:0``. ``None``, and ``cuda`` without one, leave it to the memory that is read into.

    :raises ValueError: for anything else.
    """
    if device is None or device == "cuda":
        return None
    number = str(device).removeprefix("cuda:")
    if not (number.isascii() and number.isdecimal()) or int(number) >= 1 << 32:
        raise ValueError(f'{device!r} is no GPU of CUDA; give its number, or "cuda:0"')
    return int(number)
