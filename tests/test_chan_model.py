"""Channels and select against a model of them: whatever the program, both do the same.

The model is sequential. A program is a list of commands; each lets one new goroutine begin one
operation, or cancels one that waits, or closes a channel. Before the next command everything has
come to rest, so all is determined but which of several ready cases a select takes: there the model
follows, if the choice was one it may make.

The last test runs programs at once, where only what holds for every order can be checked.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gofer
from tests.support import STRESS_ROUNDS, parked

CHANNELS = 3

# ("send", channel), ("recv", channel) or ("recv_ok", channel)
Case: TypeAlias = tuple[str, int]
# What an operation came to: "sent", ("value", v), ("pair", v, ok), ("selected", index, v, ok),
# "closed", "cancelled"
Outcome: TypeAlias = Any

sized = settings(
    max_examples=max(5, min(STRESS_ROUNDS, 100_000) // 20),
    deadline=None,
    database=None,
    # A fixture that gives a number may serve many examples. To explain would be to trace threads.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)

channel = st.integers(0, CHANNELS - 1)
case = st.tuples(st.sampled_from(["send", "recv", "recv_ok"]), channel)
capacities = st.lists(st.integers(0, 3), min_size=CHANNELS, max_size=CHANNELS)


# --- The model ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Agent:
    """One goroutine and its one operation."""

    cases: list[Case | None]
    values: list[int]  # what it sends, by case
    select: bool
    g: gofer.Goroutine[Outcome]

    def outcome(self, index: int, value: Any, ok: bool) -> Outcome:
        """What its operation gives if this case is the one."""
        chosen = self.cases[index]
        assert chosen is not None
        kind = chosen[0]
        if kind == "send":
            if not ok:
                return "closed"
            return ("selected", index, None, True) if self.select else "sent"
        if self.select:
            return ("selected", index, value, ok)
        if kind == "recv_ok":
            return ("pair", value, ok)
        return ("value", value) if ok else "closed"


@dataclass
class ModelChan:
    cap: int
    closed: bool = False
    buffer: deque[int] = field(default_factory=deque)
    senders: list[Agent] = field(default_factory=list)
    receivers: list[Agent] = field(default_factory=list)


class Model:
    def __init__(self, capacities: list[int]) -> None:
        self.channels = [ModelChan(cap) for cap in capacities]
        self.waiting: list[Agent] = []

    def ready(self, case: Case | None) -> bool:
        if case is None:
            return False
        ch = self.channels[case[1]]
        if ch.closed:
            return True
        if case[0] == "send":
            return bool(ch.receivers) or len(ch.buffer) < ch.cap
        return bool(ch.senders or ch.buffer)

    def enqueue(self, agent: Agent) -> None:
        self.waiting.append(agent)
        for case in agent.cases:
            if case is not None:
                ch = self.channels[case[1]]
                line = ch.senders if case[0] == "send" else ch.receivers
                if agent not in line:
                    line.append(agent)

    def remove(self, agent: Agent) -> None:
        self.waiting.remove(agent)
        for ch in self.channels:
            for line in (ch.senders, ch.receivers):
                if agent in line:
                    line.remove(agent)

    async def completes(self, agent: Agent, kinds: str, c: int, value: Any, ok: bool) -> int:
        """One that waited is done now, by a case of these kinds on channel c; which one it says.

        If it is never woken, main waits here and the run ends in a deadlock.
        """
        self.remove(agent)
        actual = await agent.g
        possible = {
            i: agent.outcome(i, value, ok)
            for i, case in enumerate(agent.cases)
            if case is not None and case[0] in kinds.split() and case[1] == c
        }
        assert actual in possible.values(), (actual, possible)
        return next(i for i, outcome in possible.items() if outcome == actual)

    async def receive(self, c: int) -> tuple[int | None, bool]:
        """Receive from a channel that is ready for it."""
        ch = self.channels[c]
        value: int
        if ch.buffer:
            value = ch.buffer.popleft()
            if ch.senders:
                ch.buffer.append(await self.take_from_sender(c))
        elif ch.senders:
            value = await self.take_from_sender(c)
        else:
            assert ch.closed
            return None, False
        return value, True

    async def take_from_sender(self, c: int) -> int:
        agent = self.channels[c].senders[0]
        return agent.values[await self.completes(agent, "send", c, None, True)]

    async def send(self, c: int, value: int) -> bool:
        """Send to a channel that is ready for it. False if it is closed."""
        ch = self.channels[c]
        if ch.closed:
            return False
        if ch.receivers:
            await self.completes(ch.receivers[0], "recv recv_ok", c, value, True)
        else:
            assert len(ch.buffer) < ch.cap
            ch.buffer.append(value)
        return True

    async def close(self, c: int) -> None:
        ch = self.channels[c]
        ch.closed = True
        for agent in [*ch.receivers, *ch.senders]:
            if agent in self.waiting:
                await self.completes(agent, "send recv recv_ok", c, None, False)


# --- The real thing beside it ---------------------------------------------------------------------


def operation(channels: list[gofer.Chan[int]], case: Case | None, value: int) -> Any:
    if case is None:
        return None
    ch = channels[case[1]]
    return ch.send(value) if case[0] == "send" else getattr(ch, case[0])()


async def perform(op: Any, kind: str) -> Outcome:
    try:
        result = await op
    except gofer.ChannelClosed:
        return "closed"
    except gofer.Cancelled:
        return "cancelled"
    if kind == "send":
        assert result is None
        return "sent"
    if kind == "recv":
        return ("value", result)
    return ("pair" if kind == "recv_ok" else "selected", *result)


def at_once(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except gofer.WouldBlock:
        return "would block"
    except gofer.ChannelClosed as exc:
        return str(exc)


class Pair:
    """The channels, and the model of them."""

    def __init__(self, capacities: list[int]) -> None:
        self.real = [gofer.Chan[int](cap) for cap in capacities]
        self.model = Model(capacities)
        self.value = 0

    def new_value(self) -> int:
        self.value += 1
        return self.value

    def check(self) -> None:
        for ch, model in zip(self.real, self.model.channels, strict=True):
            assert (len(ch), ch.closed) == (len(model.buffer), model.closed)
        for agent in self.model.waiting:
            assert not agent.g.done(), f"{agent} should still wait: {agent.g.result()}"

    async def begin(self, cases: list[Case | None], select: bool, default: bool = False) -> None:
        """Start a goroutine with this operation, and see what becomes of it."""
        values = [self.new_value() for _ in cases]
        ops = [operation(self.real, c, v) for c, v in zip(cases, values, strict=True)]
        if select:
            g = gofer.go(perform, gofer.select(*ops, default=default), "select")
        else:
            assert cases[0] is not None
            g = gofer.go(perform, ops[0], cases[0][0])
        agent = Agent(cases, values, select, g)
        ready = [i for i, c in enumerate(cases) if self.model.ready(c)]
        if ready:
            await self.done_at_once(agent, ready)
        elif default:
            assert await g == ("selected", -1, None, False)
        else:
            await parked(g)
            self.model.enqueue(agent)

    async def done_at_once(self, agent: Agent, ready: list[int]) -> None:
        actual = await agent.g
        if not agent.select:
            index = 0
        elif actual == "closed":
            index = next((i for i in ready if self.sends_to_closed(agent.cases[i])), -1)
        else:
            index = actual[1]
        assert index in ready, actual
        case = agent.cases[index]
        assert case is not None
        if case[0] == "send":
            ok = await self.model.send(case[1], agent.values[index])
            expected = agent.outcome(index, None, ok)
        else:
            expected = agent.outcome(index, *await self.model.receive(case[1]))
        assert actual == expected

    def sends_to_closed(self, case: Case | None) -> bool:
        return case is not None and case[0] == "send" and self.model.channels[case[1]].closed

    async def send_nowait(self, c: int) -> None:
        value = self.new_value()
        actual = at_once(self.real[c].send_nowait, value)
        if not self.model.ready(("send", c)):
            assert actual == "would block"
        else:
            ok = await self.model.send(c, value)
            assert actual == (None if ok else "send on closed channel")

    async def recv_nowait(self, c: int) -> None:
        actual = at_once(self.real[c].recv_nowait)
        if not self.model.ready(("recv", c)):
            assert actual == "would block"
        else:
            value, ok = await self.model.receive(c)
            assert actual == (value if ok else "receive from closed channel")

    async def close(self, c: int) -> None:
        actual = at_once(self.real[c].close)
        if self.model.channels[c].closed:
            assert actual == "close of closed channel"
        else:
            assert actual is None
            await self.model.close(c)

    async def cancel(self, which: int) -> None:
        if not self.model.waiting:
            return
        agent = self.model.waiting[which % len(self.model.waiting)]
        self.model.remove(agent)
        assert agent.g.cancel()
        assert await agent.g == "cancelled"

    async def end(self) -> None:
        """Nobody waits any more, and the buffers hold what they should."""
        while self.model.waiting:
            await self.cancel(0)
        for ch, model in zip(self.real, self.model.channels, strict=True):
            while model.buffer:
                assert at_once(ch.recv_nowait) == model.buffer.popleft()
            nothing = "receive from closed channel" if model.closed else "would block"
            assert at_once(ch.recv_nowait) == nothing
            if not model.closed and ch.cap == 0:
                assert at_once(ch.send_nowait, 0) == "would block"


command = st.one_of(
    st.tuples(st.just("begin"), case.map(lambda c: [c]), st.just(False)),
    st.tuples(
        st.just("begin"), st.lists(st.none() | case, max_size=5), st.just(True), st.booleans()
    ),
    st.tuples(st.sampled_from(["send_nowait", "recv_nowait"]), channel),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("close"), channel),
)


@sized
@given(capacities=capacities, commands=st.lists(command, max_size=40))
def test_every_program_does_what_the_model_does(
    procs: int, capacities: list[int], commands: list[tuple[Any, ...]]
) -> None:
    async def main() -> None:
        pair = Pair(capacities)
        for name, *args in commands:
            await getattr(pair, name)(*args)
            pair.check()
        await pair.end()

    gofer.run(main, procs=procs)


calm_command = st.one_of(
    st.tuples(st.just("begin"), case.map(lambda c: [c]), st.just(False)),
    st.tuples(st.just("begin"), st.lists(case, min_size=1, max_size=4), st.just(True)),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
)


@sized
@given(capacities=capacities, commands=st.lists(calm_command, min_size=10, max_size=60))
def test_long_lines_of_waiters_do_what_the_model_does(
    procs: int, capacities: list[int], commands: list[tuple[Any, ...]]
) -> None:
    """Nothing is closed and nobody leaves but by a cancellation: the lines grow."""

    async def main() -> None:
        pair = Pair(capacities)
        for name, *args in commands:
            await getattr(pair, name)(*args)
            pair.check()
        for c in range(CHANNELS):
            await pair.close(c)
            pair.check()
        await pair.end()

    gofer.run(main, procs=procs)


@given(
    cap=st.integers(0, 5),
    commands=st.lists(st.sampled_from(["send_nowait", "recv_nowait", "close"]), max_size=60),
)
@sized
def test_a_channel_alone_is_a_queue(cap: int, commands: list[str]) -> None:
    """No runtime is needed for what does not wait."""
    ch = gofer.Chan[int](cap)
    queue: deque[int] = deque()
    closed = False
    for value, name in enumerate(commands):
        if name == "send_nowait":
            actual = at_once(ch.send_nowait, value)
            if closed:
                assert actual == "send on closed channel"
            elif len(queue) == cap:
                assert actual == "would block"
            else:
                assert actual is None
                queue.append(value)
        elif name == "recv_nowait":
            actual = at_once(ch.recv_nowait)
            if queue:
                assert actual == queue.popleft()
            else:
                assert actual == ("receive from closed channel" if closed else "would block")
        else:
            assert at_once(ch.close) == ("close of closed channel" if closed else None)
            closed = True
        assert (len(ch), ch.cap, ch.closed) == (len(queue), cap, closed)


# --- All at once ----------------------------------------------------------------------------------


@dataclass
class Log:
    """What one goroutine has seen of each channel, in order."""

    sent: list[tuple[int, int]] = field(default_factory=list)
    received: list[tuple[int, int]] = field(default_factory=list)


async def follow(
    channels: list[gofer.Chan[int]], program: list[list[Case]], me: int, log: Log
) -> None:
    """Do one operation after the other; a cancellation or a closed channel ends only that one."""
    for step, cases in enumerate(program):
        values = [1000 * me + 10 * step + i for i in range(len(cases))]
        ops = [operation(channels, c, v) for c, v in zip(cases, values, strict=True)]
        try:
            index, value, ok = await gofer.select(*ops)
        except (gofer.Cancelled, gofer.ChannelClosed):
            continue
        kind, c = cases[index]
        if kind == "send":
            log.sent.append((c, values[index]))
        elif ok:
            log.received.append((c, value))


programs = st.lists(
    st.lists(st.lists(case, min_size=1, max_size=3), min_size=1, max_size=10),
    min_size=2,
    max_size=6,
)


@sized
@given(
    capacities=capacities,
    programs=programs,
    cancels=st.lists(st.integers(0, 20), max_size=10),
    close=st.booleans(),
)
def test_programs_at_once_neither_lose_nor_invent_a_value(
    procs: int,
    capacities: list[int],
    programs: list[list[list[Case]]],
    cancels: list[int],
    close: bool,
) -> None:
    channels = [gofer.Chan[int](cap) for cap in capacities]
    logs = [Log() for _ in programs]

    async def main() -> None:
        gs = [
            gofer.go(follow, channels, program, me, log)
            for me, (program, log) in enumerate(zip(programs, logs, strict=True))
        ]
        for which in cancels:
            gs[which % len(gs)].cancel()
            await gofer.gosched()
        while not all(g.done() for g in gs):
            if all(g.done() or g.state == "waiting" for g in gs):
                for ch in channels:
                    if close and not ch.closed:
                        ch.close()
                for g in gs:
                    g.cancel()
            await gofer.gosched()
        for g in gs:
            if not g.cancelled():  # before it began
                await g

    gofer.run(main, procs=procs)
    received = [item for log in logs for item in log.received]
    for c, ch in enumerate(channels):
        while isinstance(value := at_once(ch.recv_nowait), int):
            received.append((c, value))
    assert sorted(received) == sorted(item for log in logs for item in log.sent)
    # What one goroutine receives of another, through one channel, comes in the order it was sent.
    for log in logs:
        for c in range(CHANNELS):
            for sender in range(len(programs)):
                mine = [v for k, v in log.received if k == c and v // 1000 == sender]
                assert mine == sorted(mine)


def test_the_model_notices_a_wrong_order() -> None:
    """The tests above would be worth little if it did not."""

    async def main() -> None:
        pair = Pair([2, 0, 0])
        for _ in range(2):
            await pair.send_nowait(0)
        first = pair.real[0].recv_nowait()
        pair.real[0].send_nowait(first)
        await pair.recv_nowait(0)

    with pytest.raises(AssertionError):
        gofer.run(main)
