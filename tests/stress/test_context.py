"""Contexts that end while others make, bind, leave and look at them."""

import contextlib
import gc
import random
import threading
import time
from typing import Any

import pytest

import gofer
from gofer import _core, context
from gofer.context import Context
from tests.support import FREE_THREADED, parked, rounds, sleep_long, thread, until


async def linger(rng: random.Random) -> None:
    """A little time, of a kind."""
    kind = rng.randrange(4)
    if kind == 0:
        await gofer.gosched()
    elif kind == 1:
        await gofer.sleep(rng.random() * 1e-4)
    else:
        for _ in range(rng.randrange(300)):
            pass


async def join(gs: list[gofer.Goroutine[Any]]) -> None:
    """Wait for all, cancelled or not."""
    for g in gs:
        with contextlib.suppress(gofer.Cancelled):
            await g


def is_over(ctx: Context) -> bool:
    """err() set means that done is closed and there is a cause."""
    if ctx.err() is None:
        return False
    assert ctx.done.closed
    assert ctx.cause() is not None
    try:
        ctx.done.recv_nowait()
    except gofer.ChannelClosed:
        return True
    raise AssertionError("done is open")


def test_simultaneous_cancels_of_a_tree(procs: int) -> None:
    """100 nodes, each cancelled by a goroutine of its own: the cause comes from above or itself."""

    async def cancel(ctx: Context, cause: int) -> None:
        ctx.cancel(cause)
        assert is_over(ctx)

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds(divide_by=20):
            root = context.with_cancel(context.background())
            nodes, parents = [root], [0]
            for i in range(1, 100):
                parents.append(rng.randrange(i))
                nodes.append(context.with_cancel(nodes[parents[i]]))
                if rng.randrange(2):
                    nodes[i].done
            gs: list[gofer.Goroutine[Any]] = []
            for i in rng.sample(range(100), 100):
                gs.append(gofer.go(cancel, nodes[i], i))
                if rng.randrange(10) == 0:
                    await gofer.gosched()
            await join(gs)
            for i, node in enumerate(nodes):
                assert is_over(node)
                cause = node.cause()
                if cause != i:  # then it took that of its parent
                    assert cause == nodes[parents[i]].cause()
            assert root.cause() == 0

    gofer.run(main, procs=procs)


def test_err_set_means_done_closed(procs: int) -> None:
    async def look(ctx: Context) -> None:
        done = ctx.done  # asking for it later would wait for the one who ends it
        while True:
            for _ in range(100):
                if ctx.err() is not None:
                    assert done.closed
                    assert is_over(ctx)
                    return
            await gofer.gosched()

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds(divide_by=5):
            parent = context.with_cancel()
            ctx = context.with_cancel(context.with_value("key", 1, parent))
            gs: list[gofer.Goroutine[Any]] = [gofer.go(look, ctx) for _ in range(4)]
            await linger(rng)
            parent.cancel()
            assert is_over(ctx)
            await join(gs)

    gofer.run(main, procs=procs)


def test_children_made_while_the_parent_ends(procs: int) -> None:
    """They are over from the beginning or end with it; some are dropped at the same time."""

    async def make(parent: Context, seed: int) -> list[Context]:
        rng = random.Random(seed)
        kept: list[Context] = []
        while parent.err() is None:
            for kind in range(4):
                if kind == 0:
                    ctx = context.with_cancel(parent)
                elif kind == 1:
                    ctx = context.with_timeout(100_000, parent)
                elif kind == 2:
                    ctx = context.with_cancel(context.with_value("key", 1, parent))
                else:
                    ctx = context.with_cancel(rng.choice(kept) if kept else parent)
                if rng.randrange(4) == 0:
                    kept.append(ctx)  # the others are dropped
                    if rng.randrange(2):
                        ctx.done
            await gofer.gosched()
        return kept

    async def main() -> None:
        rng = random.Random(procs)
        for i in rounds(divide_by=20):
            parent = context.with_cancel()
            gs = [gofer.go(make, parent, 4 * i + k) for k in range(4)]
            for _ in range(rng.randrange(5)):
                await linger(rng)
            parent.cancel("why")
            for g in gs:
                for ctx in await g:
                    assert is_over(ctx)
                    assert ctx.cause() == "why"

    gofer.run(main, procs=procs)


def test_bind_unbind_and_spawn_while_it_ends(procs: int) -> None:
    """Whoever is inside comes out, and whoever was started inside ends."""
    ended = gofer.atomic.Int()

    async def child() -> None:
        try:
            await sleep_long()
        finally:
            ended.add(1)

    async def enter(parent: Context, seed: int) -> int:
        rng = random.Random(seed)
        started = 0
        while parent.err() is None:
            ctx = rng.choice([parent, context.with_cancel(parent), context.background()])
            try:
                async with ctx, context.with_cancel(parent):
                    if rng.randrange(4) == 0:
                        g = gofer.go(child)
                        started += 1
                        del g
                    await linger(rng)
            except gofer.Cancelled:
                assert parent.err() is not None
        return started

    async def main() -> None:
        rng = random.Random(procs)
        expected = 0
        for i in rounds(divide_by=20):
            parent = context.with_cancel(context.background())
            gs = [gofer.go(enter, parent, 4 * i + k) for k in range(4)]
            for _ in range(rng.randrange(5)):
                await linger(rng)
            parent.cancel()
            expected += sum([await g for g in gs])
        await until(lambda: gofer.num_goroutine() == 1)
        # One that was cancelled before it began never ran: but a context does not do that.
        assert ended.load() == expected
        assert _core.counters()["timers"] <= 1

    gofer.run(main, procs=procs)


def test_after_func_stop_against_cancel(procs: int) -> None:
    """Either one stop() is True, or the function is called, once."""
    calls = gofer.atomic.Int()

    async def stopper(stop: Any) -> int:
        return int(stop())

    async def main() -> None:
        rng = random.Random(procs)
        expected = 0
        for i in rounds(divide_by=2):
            ctx = context.with_timeout(rng.random() * 1e-4) if i % 3 else context.with_cancel()
            stop = context.after_func(ctx, calls.add, 1)
            gs = [gofer.go(stopper, stop) for _ in range(2)]
            await linger(rng)
            ctx.cancel()
            stopped = sum([await g for g in gs]) + stop()
            assert stopped in (0, 1)
            expected += 1 - stopped
        await until(lambda: calls.load() >= expected)
        await gofer.sleep(0.002)
        assert calls.load() == expected

    gofer.run(main, procs=procs)


def test_deadline_against_cancel(procs: int) -> None:
    """One of them ended it, and the edge of the block tells which."""
    outcomes = set()

    async def inside(ctx: Context) -> type[BaseException]:
        try:
            async with ctx:
                await sleep_long()
        except TimeoutError:
            return TimeoutError
        return gofer.Cancelled

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds(divide_by=2):
            ctx = context.with_timeout(rng.random() * 2e-4)
            gs = [gofer.go(inside, ctx) for _ in range(2)]
            await linger(rng)
            ctx.cancel()
            assert is_over(ctx)
            err = ctx.err()
            for g in gs:
                assert await g is type(err)
            assert ctx.err() is err
            outcomes.add(type(err))
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)
    assert outcomes <= {gofer.Cancelled, TimeoutError}


def test_timeouts_that_come_as_the_work_is_done(procs: int) -> None:
    """In time or late, and what comes after the block is not disturbed."""

    async def one(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(10):
            limit, work = rng.random() * 2e-4, rng.random() * 2e-4
            try:
                async with gofer.timeout(limit):
                    await gofer.sleep(work)
            except TimeoutError:
                pass
            await gofer.sleep(0)
            await gofer.gosched()

    async def main() -> None:
        for i in rounds(divide_by=20):
            for g in [gofer.go(one, 8 * i + k) for k in range(8)]:
                await g
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_nested_blocks_and_which_of_them_ends(procs: int) -> None:
    """Unrelated contexts end in any order at any time; each Cancelled stops at its own edge."""

    async def nest(contexts: list[Context], rng: random.Random) -> None:
        if not contexts:
            await sleep_long()
        ctx = contexts[0]
        async with ctx:
            await nest(contexts[1:], rng)
            while True:  # the inner one ended quietly: we are inside the others still
                await linger(rng)
                await gofer.sleep(1e-5)
        assert ctx.err() is not None

    async def cancel(ctx: Context, rng: random.Random) -> None:
        await linger(rng)
        await linger(rng)
        ctx.cancel()

    async def main() -> None:
        for i in rounds(divide_by=10):
            rng = random.Random(i)
            contexts = [context.with_cancel(context.background()) for _ in range(4)]
            g = gofer.go(nest, contexts, rng)
            gs = [gofer.go(cancel, ctx, random.Random(4 * i + k)) for k, ctx in enumerate(contexts)]
            await join(gs)
            await g  # quietly
            assert not g.cancelled()

    gofer.run(main, procs=procs)


def test_no_value_is_lost_when_a_context_ends(procs: int) -> None:
    """A receiver whose context ends has received a value or has not; so has a sender."""

    async def receive(ctx: Context, ch: gofer.Chan[int], got: list[int]) -> None:
        async with ctx:
            while True:
                got.append(await ch.recv())

    async def send(ctx: Context, ch: gofer.Chan[int], sent: list[int], base: int) -> None:
        async with ctx:
            for i in range(base, base + 1000):
                await ch.send(i)
                sent.append(i)

    async def main() -> None:
        rng = random.Random(procs)
        for i in rounds(divide_by=10):
            ch = gofer.Chan[int](i % 3)
            contexts = [context.with_cancel() for _ in range(4)]
            got: list[list[int]] = [[], []]
            sent: list[list[int]] = [[], []]
            gs: list[gofer.Goroutine[Any]] = []
            for k in range(2):
                gs.append(gofer.go(receive, contexts[k], ch, got[k]))
                gs.append(gofer.go(send, contexts[2 + k], ch, sent[k], 1000 * k))
            for ctx in rng.sample(contexts, 4):
                await linger(rng)
                ctx.cancel()
            await join(gs)
            left = []
            with contextlib.suppress(gofer.WouldBlock):
                while True:
                    left.append(ch.recv_nowait())
            assert sorted(got[0] + got[1] + left) == sorted(sent[0] + sent[1])

    gofer.run(main, procs=procs)


def test_no_lock_is_lost_when_a_context_ends(procs: int) -> None:
    async def hold(ctx: Context, mu: gofer.Mutex, sem: gofer.Semaphore) -> None:
        async with ctx:
            while True:
                async with mu:
                    await gofer.gosched()
                async with sem:
                    await gofer.gosched()

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds(divide_by=20):
            mu, sem = gofer.Mutex(), gofer.Semaphore(2)
            contexts = [context.with_cancel() for _ in range(4)]
            gs: list[gofer.Goroutine[Any]] = [gofer.go(hold, ctx, mu, sem) for ctx in contexts]
            for ctx in contexts:
                await linger(rng)
                ctx.cancel()
            await join(gs)
            assert mu.try_lock()
            assert sem.try_acquire(2)

    gofer.run(main, procs=procs)


def test_in_a_shield_nothing_is_disturbed(procs: int) -> None:
    async def shielded(ctx: Context, ch: gofer.Chan[int], n: int) -> list[int]:
        got = []
        async with ctx:
            async with context.shield():
                for _ in range(n):
                    got.append(await ch.recv())
                    await gofer.sleep(1e-6)
                    await gofer.gosched()
            with contextlib.suppress(gofer.Cancelled):
                await gofer.sleep(0)
        return got

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds(divide_by=10):
            parent = context.with_cancel()
            ch = gofer.Chan[int]()
            g = gofer.go(shielded, context.with_cancel(parent), ch, 5)
            for i in range(5):
                if i == 2:
                    await linger(rng)
                    parent.cancel()
                await ch.send(i)
            assert await g == list(range(5))

    gofer.run(main, procs=procs)


def test_threads_cancel_while_goroutines_come_and_go(procs: int) -> None:
    box: list[Context] = []
    stop = threading.Event()

    def foreign() -> None:
        while not stop.is_set():
            with contextlib.suppress(IndexError):
                ctx = box.pop()
                assert ctx.done.closed or ctx.err() is None
                ctx.cancel("thread")
            time.sleep(1e-5)

    async def one() -> None:
        ctx = context.with_cancel()
        g = gofer.go(inside, ctx)
        box.append(ctx)
        assert (await ctx.done.recv_ok())[1] is False
        await g
        assert ctx.cause() == "thread"

    async def inside(ctx: Context) -> None:
        async with ctx:
            await sleep_long()

    async def main() -> None:
        with thread(foreign):
            try:
                for _ in rounds(divide_by=50):
                    for g in [gofer.go(one) for _ in range(5)]:
                        await g
            finally:
                stop.set()

    gofer.run(main, procs=procs)


def test_collected_while_the_parent_ends(procs: int) -> None:
    """Children in cycles, freed by the collector as the parent goes through its list."""

    class Node:
        def __init__(self, parent: Context) -> None:
            self.me = self
            self.ctx = context.with_value("node", self, parent)
            if id(self) % 3 == 0:
                context.after_func(self.ctx, int)

    async def collect() -> None:
        gc.collect(0)

    async def main() -> None:
        for _ in rounds(divide_by=100):
            parent = context.with_cancel()
            for _ in range(20):
                Node(parent)
            g = gofer.go(collect)
            await gofer.gosched()
            parent.cancel()
            await g

    gofer.run(main, procs=procs)


def test_parked_goroutines_of_a_wide_tree_all_wake(procs: int) -> None:
    async def inside(ctx: Context) -> None:
        async with ctx:
            await sleep_long()

    async def main() -> None:
        for i in rounds(divide_by=100):
            root = context.with_cancel()
            gs: list[gofer.Goroutine[Any]] = [
                gofer.go(inside, context.with_timeout(1000, root)) for _ in range(100)
            ]
            if i % 2:
                await parked(*gs)
            root.cancel()
            await join(gs)
            assert all(g.cancelled() for g in gs)
            assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("first", ["done", "err"])
def test_err_and_done_tell_the_same_at_every_moment(first: str) -> None:
    """Who sees one of them sees the other, whichever he looks at first, and without waiting."""
    many = 100 if FREE_THREADED else 5
    at = [0]

    def watch(contexts: list[Context]) -> str | None:
        for i in range(many):
            while len(contexts) <= i:
                pass
            ctx = contexts[i]
            done = ctx.done
            at[0] = i
            if first == "done":
                while not done.closed:
                    pass
                if ctx.err() is None:
                    return "done is closed, but err() is None"
            else:
                while ctx.err() is None:
                    pass
                if not done.closed:
                    return "err() is set, but done is open"
        return None

    def main() -> None:
        for _ in rounds(50):
            contexts: list[Context] = []
            at[0] = -1
            g = gofer.go(watch, contexts)
            for i in range(many):
                top = context.with_cancel(context.background())
                child = context.with_cancel(top)
                contexts.append(child)
                while at[0] < i and not g.done():
                    pass  # he is about to look
                for _ in range(random.randrange(20)):
                    pass
                top.cancel()
            assert gofer.block(g) is None

    gofer.run(main, procs=2)
