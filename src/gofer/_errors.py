"""The exceptions of gofer."""

from typing import Any


class Cancelled(BaseException):
    """Raised out of an operation of a goroutine that has been cancelled.

    It is no Exception, so `except Exception` lets it through; clean up in `finally`.

    >>> async def worker():
    ...     await sleep(60)
    >>> g = go(worker)
    >>> g.cancel("too slow")
    True
    >>> await g
    Traceback (most recent call last):
    gofer.Cancelled: too slow
    """

    _context: Any = None  # the context that ended, if it was one

    @property
    def reason(self) -> Any:
        """What was given to cancel(), or None.

        >>> Cancelled("too slow").reason
        'too slow'
        """
        return self.args[0] if self.args else None


class Deadlock(RuntimeError):
    """Raised by run() when every goroutine is asleep and nothing can wake one.

    >>> async def main():
    ...     await gofer.Chan().recv()  # nobody sends
    >>> gofer.run(main)
    Traceback (most recent call last):
    gofer.Deadlock: all goroutines are asleep - deadlock!...
    """


class GoroutineLeakWarning(RuntimeWarning):
    """A goroutine waited for something that nothing can ever do any more.

    It has been ended and its `finally` blocks have run.

    >>> warnings.simplefilter("error", GoroutineLeakWarning)
    """


class ChannelClosed(Exception):
    """The channel is closed.

    >>> ch = Chan()
    >>> ch.close()
    >>> try:
    ...     value = await ch.recv()
    ... except ChannelClosed:
    ...     print("no more")
    no more
    """


class PoolClosed(ChannelClosed, RuntimeError):
    """The WorkerPool has been shut down and takes no more jobs.

    >>> try:
    ...     await pool.submit(job)
    ... except PoolClosed:
    ...     save_for_later(job)
    """


class WouldBlock(Exception):
    """The operation cannot be done at once.

    >>> try:
    ...     value = ch.recv_nowait()
    ... except WouldBlock:
    ...     value = None
    """


class ClosedError(ConnectionError):
    """The connection or listener has been closed on this side.

    >>> try:
    ...     data = await conn.read()
    ... except net.ClosedError:
    ...     data = b""
    """


class IncompleteRead(EOFError):
    """The stream ended before read_exactly() or read_until() had what they wanted.

    `partial` is what there was, `expected` how many bytes were wanted (None: a separator was).

    >>> try:
    ...     record = await conn.read_exactly(1024)
    ... except net.IncompleteRead as end:
    ...     print(len(end.partial), "bytes")
    31 bytes
    """

    def __init__(self, partial: bytes, expected: int | None) -> None:
        super().__init__(partial, expected)
        self.partial = partial
        self.expected = expected

    def __str__(self) -> str:
        wanted = "a separator" if self.expected is None else f"{self.expected} bytes"
        return f"the stream ended after {len(self.partial)} bytes; {wanted} expected"


class LimitExceeded(ValueError):
    """read_until() found no separator within its limit. The data can still be read.

    >>> try:
    ...     line = await conn.read_until(b"\\n", limit=1000)
    ... except net.LimitExceeded:
    ...     await conn.write(b"line too long")
    """


class GoExit(BaseException):
    """What goexit() raises, to unwind the goroutine."""


for _cls in (
    Cancelled,
    Deadlock,
    GoroutineLeakWarning,
    ChannelClosed,
    PoolClosed,
    WouldBlock,
):
    _cls.__module__ = "gofer"  # where users import it from, and what tracebacks should say
del _cls
for _net in (ClosedError, IncompleteRead, LimitExceeded):
    _net.__module__ = "gofer.net"
del _net
