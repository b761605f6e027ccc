"""What ``STREAMER_LIBRARY`` has to be, for a shell.

    export STREAMER_LIBRARY=$(python3 -m forebay.streamer)
"""

from forebay import streamer_library


def main() -> None:
    """Prints it."""
    print(streamer_library())


if __name__ == "__main__":
    main()
