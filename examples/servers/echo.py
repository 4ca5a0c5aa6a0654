"""An echo server: python examples/servers/echo.py [PORT], then for example: nc 127.0.0.1 PORT"""

import contextlib
import sys

from gofer import go, net, run


async def echo(conn: net.Conn) -> None:
    """Send back what comes, until the peer has had enough."""
    async with conn:
        with contextlib.suppress(ConnectionError):
            while data := await conn.read():
                await conn.write(data)


async def main(port: int) -> None:
    async with net.listen("127.0.0.1", port) as listener:
        print("listening on {}:{}".format(*listener.addr), flush=True)
        async for conn in listener:
            go(echo, conn)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
