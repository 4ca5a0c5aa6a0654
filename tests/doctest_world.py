"""What the examples in the docstrings take for granted: see test_doctests.py.

Each function here makes the thing of its name, for an example that mentions it.
"""

import contextlib
import os
import signal
import socket
import ssl
import sys
import time
import types
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gofer
from gofer import _dial, atomic, context, net, process, trace
from tests.net_support import conn_and_socket, echo, make_certificate, serve


async def fetch(*args: Any) -> str:
    return "a page"


async def work(*args: Any) -> None:
    await gofer.sleep(0)


async def main() -> None:
    await gofer.go(work)


async def serve_nothing(*args: Any) -> None:
    await gofer.sleep(0)


def nothing(*args: Any) -> None:
    pass


# What any program has, inside a run or outside.
PLAIN: dict[str, Any] = {
    "gofer": gofer,
    **{name: getattr(gofer, name) for name in gofer.__all__},
    **{module.__name__: module for module in (os, signal, socket, ssl, sys, time, warnings)},
    "main": main,
}
OBJECTS: dict[str, Any] = {
    **PLAIN,
    **{
        name: getattr(module, name)
        for module in (atomic, gofer.singleflight, context, trace)
        for name in ("Int", "Bool", "Ref", "Flight", "Context", "FlightRecorder")
        if hasattr(module, name)
    },
    "url": "http://example.org/",
    "urls": ["http://example.org/1", "http://example.org/2"],
    "fetch": fetch,
    "work": work,
    "session": work,
    "serve": serve_nothing,
    "describe": nothing,
    "look": nothing,
    "change": nothing,
    "slow_hash": hash,
    "data": b"data",
    "header": b"header",
    "body": b"body",
    "query": "select 1",
    "counter": 0,
    "hits": 17,
    "job": 17,
    "save_for_later": nothing,
    "ready": True,
    "slow": True,
    "config": {"port": 80},
    "new_config": {"port": 81},
    "load_config": lambda *args: {"port": 80},
    "library": types.SimpleNamespace(use_thread_local_state=nothing),
    "connection": types.SimpleNamespace(execute=lambda sql: [], goodbye=work, close=nothing),
}

Factory = Callable[[contextlib.AsyncExitStack], Awaitable[Any]]
MADE: dict[str, Factory] = {}


def made(factory: Factory) -> Factory:
    MADE[factory.__name__] = factory
    return factory


# --- Channels, locks, goroutines -----------------------------------------------------------------


async def channel(_: contextlib.AsyncExitStack) -> gofer.Chan[int]:
    """With a value in it, and room for more."""
    ch = gofer.Chan[int](10)
    ch.send_nowait(1)
    return ch


MADE["ch"] = MADE["a"] = channel


@made
async def b(_: contextlib.AsyncExitStack) -> gofer.Chan[int]:
    """Where nothing happens."""
    return gofer.Chan()


@made
async def g(stack: contextlib.AsyncExitStack) -> gofer.Goroutine[None]:
    """One that does not end by itself."""
    sleeper = gofer.go(gofer.Chan[None]().recv)
    stack.callback(sleeper.cancel)
    await gofer.sleep(0.01)
    return sleeper


@made
async def group(stack: contextlib.AsyncExitStack) -> gofer.Group:
    return await stack.enter_async_context(gofer.Group())


@made
async def mu(_: contextlib.AsyncExitStack) -> gofer.Mutex:
    return gofer.Mutex()


@made
async def rw(_: contextlib.AsyncExitStack) -> gofer.RWMutex:
    return gofer.RWMutex()


@made
async def cond(_: contextlib.AsyncExitStack) -> gofer.Cond:
    return gofer.Cond(gofer.Mutex())


@made
async def wg(_: contextlib.AsyncExitStack) -> gofer.WaitGroup:
    return gofer.WaitGroup()


@made
async def sem(_: contextlib.AsyncExitStack) -> gofer.Semaphore:
    return gofer.Semaphore(10)


@made
async def once(_: contextlib.AsyncExitStack) -> gofer.Once:
    return gofer.Once()


@made
async def buffers(_: contextlib.AsyncExitStack) -> gofer.Pool[bytearray]:
    return gofer.Pool(lambda: bytearray(10))


@made
async def buf(_: contextlib.AsyncExitStack) -> bytearray:
    return bytearray(10)


@made
async def n(_: contextlib.AsyncExitStack) -> atomic.Int:
    return atomic.Int(1)


@made
async def flight(_: contextlib.AsyncExitStack) -> Any:
    return gofer.singleflight.Flight()


@made
async def timer(stack: contextlib.AsyncExitStack) -> gofer.Timer:
    it = gofer.Timer(60)
    stack.callback(it.stop)
    return it


@made
async def ticker(stack: contextlib.AsyncExitStack) -> gofer.Ticker:
    it = gofer.Ticker(60)
    stack.callback(it.stop)
    return it


async def some_context(stack: contextlib.AsyncExitStack) -> context.Context:
    ctx = context.with_cancel()
    stack.callback(ctx.cancel)
    return ctx


MADE["ctx"] = MADE["request"] = some_context


async def some_executor(stack: contextlib.AsyncExitStack) -> ThreadPoolExecutor:
    return stack.enter_context(ThreadPoolExecutor(1))


MADE["executor"] = some_executor


@made
async def pool(stack: contextlib.AsyncExitStack) -> gofer.WorkerPool[Any, None]:
    return await stack.enter_async_context(gofer.WorkerPool(2, work))


@made
async def collector(_: contextlib.AsyncExitStack) -> Any:
    return gofer.metrics.Collector()


@made
async def recorder(stack: contextlib.AsyncExitStack) -> trace.FlightRecorder:
    it = trace.FlightRecorder(seconds=5)
    stack.callback(it.stop)
    return it


# --- The network ---------------------------------------------------------------------------------

SENT = b"hello, world 123\r\nsecond line\r\n"


@made
async def conn(stack: contextlib.AsyncExitStack) -> net.Conn:
    """Its peer has written two lines, closed its side, and reads what comes."""
    it, peer = conn_and_socket()
    stack.callback(peer.close)
    stack.callback(it.close)
    peer.sendall(SENT)
    peer.shutdown(socket.SHUT_WR)
    return it


@made
async def sock(stack: contextlib.AsyncExitStack) -> socket.socket:
    """A non-blocking socket of somebody else, with something to read."""
    it, peer = socket.socketpair()
    stack.callback(peer.close)
    stack.callback(it.close)
    it.setblocking(False)
    peer.sendall(SENT)
    return it


@made
async def listener(stack: contextlib.AsyncExitStack) -> net.Listener:
    """Somebody connects, and a little later it is closed."""
    it = net.listen("127.0.0.1", 0)
    client = socket.create_connection(it.addr)
    stack.callback(client.close)
    stack.callback(gofer.after_func(0.1, it.close).stop)
    stack.callback(it.close)
    return it


@made
async def udp(stack: contextlib.AsyncExitStack) -> net.PacketConn:
    """Its peer has sent a message."""
    peer = net.listen_udp("127.0.0.1", 0)
    it = net.dial_udp(*peer.local_addr)
    stack.callback(peer.close)
    stack.callback(it.close)
    await peer.write_to(b"answer", it.local_addr)
    return it


@made
async def p(stack: contextlib.AsyncExitStack) -> process.Process:
    """A program that ends soon."""
    return await stack.enter_async_context(await process.start(["sleep", "0.1"]))


# --- The whole -----------------------------------------------------------------------------------


class World:
    """The names that an example uses, with what they stand for."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> dict[str, Any]:
        await self.stack.__aenter__()
        self.world: dict[str, Any] = {"__name__": "__main__"}
        for name in sorted(self.names):
            if name in MADE:
                self.world[name] = await MADE[name](self.stack)
            elif name in OBJECTS:
                self.world[name] = OBJECTS[name]
        return self.world

    async def __aexit__(self, *exc: Any) -> None:
        for _ in range(1000):  # who has been started needs the world
            if all(g.state != "runnable" for g in gofer.runtime.goroutines()):
                break
            await gofer.sleep(0.001)
        self.world.clear()  # connections that nobody holds are closed
        await self.stack.__aexit__(*exc)


class Internet:
    """example.org, for examples that mention it: ports 80 and 443 send back what they are sent."""

    def __init__(self, folder: Path) -> None:
        self.certificate = make_certificate(folder, "example.org")
        self.ports: dict[int, int] = {}
        self.targets = _dial.targets

    async def look_up(self, host: str | None, port: int, kind: int) -> list[Any]:
        if host == "example.org":
            host, port = "127.0.0.1", self.ports[port]
        return await self.targets(host, port, kind)

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        for port, tls in ((80, None), (443, self.certificate.server())):
            listener = net.listen("127.0.0.1", 0, tls=tls)
            stack.callback(listener.close)
            self.ports[port] = listener.addr[1]
            gofer.go(serve, listener, echo)


def files(directory: Path) -> None:
    """What examples read."""
    (directory / "README.md").write_text("# Not a trace\n")
    with trace.recording(directory / "program.trace"):
        gofer.run(main)
