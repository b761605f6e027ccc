#!/usr/bin/env python3
"""Passes TCP connections on: the S3 server of the tests listens on loopback alone, and pods have to reach it.

    relay.py ADDRESS PORT TO_PORT
"""

import asyncio
import sys


async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main():
    address, port, to_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    async def connected(reader, writer):
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", to_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, to_writer), pump(to_reader, writer))

    server = await asyncio.start_server(connected, address, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
