"""Looking at traces: the reader on bad files, the summary, the export to Perfetto."""

import json
import random
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import gofer
from gofer import trace
from gofer._trace.read import RUNNING, SYSCALL, WAITING, Trace, decode
from gofer._trace.summary import show_ns, summarise, text
from tests import trace_support
from tests.support import SANITIZED, TINY, spin
from tests.trace_support import ping_pong

MUTATIONS = 10_000


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A trace with something of everything in it."""
    file = tmp_path_factory.mktemp("sample") / "x.trace"
    with trace.recording(file):
        trace_support.marked(2)
        trace_support.selects(2)
        trace_support.changing_procs(2)
    return file.read_bytes()


# --- Bad files -----------------------------------------------------------------------------------


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    for name, data, words in (
        ("empty", b"", "empty"),
        ("text", b"hello, world\n" * 10, "no gofer trace"),
        ("short", b"\x7fELF", "no gofer trace"),
        ("cut", b"gofer tr", "truncated"),
    ):
        file = tmp_path / name
        file.write_bytes(data)
        with pytest.raises(trace.TraceError, match=words) as caught:
            trace.load(file)
        assert str(file) in str(caught.value)
    with pytest.raises(FileNotFoundError):
        trace.load(tmp_path / "nothing")


def test_another_version_is_refused(sample: bytes) -> None:
    with pytest.raises(trace.TraceError, match="version 2"):
        decode(sample[:12] + b"\x02\x00" + sample[14:])


def test_a_file_is_refused_wherever_it_is_cut(sample: bytes) -> None:
    rng = random.Random(1)
    for _ in range(300):
        with pytest.raises(trace.TraceError):
            decode(sample[: rng.randrange(len(sample))])


def test_what_there_is_of_a_cut_file_can_be_had(sample: bytes) -> None:
    whole = decode(sample)
    for cut in range(len(sample), len(sample) // 2, -997):
        t = decode(sample[:cut], truncated=True)
        assert len(t) <= len(whole)
        summarise(t)


def test_no_flipped_bit_goes_unnoticed(sample: bytes) -> None:
    rng = random.Random(2)
    for _ in range(300):
        at = rng.randrange(16, len(sample))
        bad = bytearray(sample)
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises(trace.TraceError):
            decode(bytes(bad))


def chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 16
    while at < len(data):
        kind, length = data[at], struct.unpack_from("<I", data, at + 4)[0]
        yield kind, data[at + 12 : at + 12 + length]
        at += 12 + length


def assemble(head: bytes, parts: list[tuple[int, bytes]]) -> bytes:
    out = [head]
    for kind, payload in parts:
        start = bytes([kind, 0, 0, 0]) + struct.pack("<I", len(payload))
        out += [start, struct.pack("<I", zlib.crc32(start + payload)), payload]
    return b"".join(out)


def mutate(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 12))
            case 3:
                del data[at : at + rng.randrange(1, 12)]
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 200)]
            case _:
                data[at:at] = b"\xff" * rng.randrange(1, 11)
    return bytes(data)


def test_ten_thousand_mutations_do_no_harm(sample: bytes) -> None:
    """Half of them behind a right checksum, so that they get far. What can be read can be shown."""
    rng = random.Random(42)
    parts = list(chunks(sample))
    read, refused, slowest = 0, 0, 0.0
    total = MUTATIONS // 20 if SANITIZED else MUTATIONS
    for n in range(total):
        if n % 2:
            bad = mutate(rng, sample)
        else:
            changed = list(parts)
            for _ in range(rng.choice((1, 1, 3))):
                k = rng.randrange(len(changed))
                match rng.randrange(5):
                    case 0:
                        rng.shuffle(changed)
                    case 1:
                        del changed[k]
                    case 2:
                        changed.insert(k, changed[rng.randrange(len(changed))])
                    case _:
                        changed[k] = (changed[k][0], mutate(rng, changed[k][1]))
                if not changed:
                    changed = list(parts)
            bad = assemble(sample[:16], changed)
        begun = time.perf_counter()
        try:
            t = decode(bad, truncated=n % 3 == 0)
        except trace.TraceError:
            refused += 1
        else:
            read += 1
            if n % 5 == 0:
                text(summarise(t))
        slowest = max(slowest, time.perf_counter() - begun)
    assert read + refused == total
    assert read > total // 100  # otherwise this tests nothing
    assert slowest < 20


# --- The summary ---------------------------------------------------------------------------------


def table(t: Trace) -> dict[str, tuple[int, int, int, int]]:
    """By name, worked out anew from the spans."""
    found: dict[str, list[int]] = {}
    for g in t.goroutines:
        row = found.setdefault(g.name, [0, 0, 0, 0])
        row[0] += 1
        for s in t.life(g.index):
            if s.state in (RUNNING, SYSCALL, WAITING):
                row[{RUNNING: 1, SYSCALL: 2, WAITING: 3}[s.state]] += s.end - s.start
    return {name: (a, b, c, d) for name, (a, b, c, d) in found.items()}


@pytest.mark.parametrize("n", [1, 2, 4], ids="procs={}".format)
def test_the_figures_are_those_of_the_spans(n: int, tmp_path: Path) -> None:
    file = tmp_path / "x.trace"
    with trace.recording(file):
        trace_support.contention(n)
        trace_support.plain(n)
    t = trace.load(file)
    s = summarise(t)
    assert {f.name: (f.count, f.running, f.syscall, f.waiting) for f in s.functions} == table(t)
    assert all(sum(f.waits.values()) == f.waiting for f in s.functions)
    spans = [t.span(i) for i in range(len(t.spans["g"]))]
    for state, found in ((1, s.slowest), (2, s.hogs), (3, s.calls)):
        took = sorted((x.end - x.start for x in spans if x.state == state), reverse=True)
        assert [x.end - x.start for x in found] == took[:10]
    waits = [x.end - x.start for x in spans if x.state == 4 and x.reason != "sleep"]
    assert [x.end - x.start for x in s.stalls] == sorted(waits, reverse=True)[:10]
    latencies = sorted(x.end - x.start for x in spans if x.state == 1)
    assert s.latencies["count"] == len(latencies)
    assert s.latencies["worst"] == latencies[-1]
    assert s.latencies["p50"] == latencies[len(latencies) // 2]
    assert sum(p.running for p in s.ps) == sum(f.running for f in s.functions)
    assert s.runs == 2
    assert s.goroutines == len(t.goroutines)


def test_the_text_names_the_hog_and_the_blocked(tmp_path: Path) -> None:
    async def burns() -> None:
        spin(0.02)
        await gofer.gosched()

    async def waits(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        g = gofer.go(waits, ch)
        await gofer.go(burns)
        await ch.send(1)
        await g

    file = tmp_path / "x.trace"
    with trace.recording(file):
        gofer.run(main, procs=1)
    page = trace.summary(file)
    hogs = page.partition("longest without a break\n")[2].splitlines()[0]
    waits_ = page.partition("longest waits\n")[2]
    assert "burns" in hogs
    assert "chan receive, until" in waits_
    assert __file__ in waits_
    assert "3 goroutines" in page.splitlines()[0]


def test_the_text_obeys_no_name(tmp_path: Path) -> None:
    async def nothing() -> None:
        pass

    async def main() -> None:
        await gofer.go(nothing, name="evil\x1b[2J\nname")

    file = tmp_path / "x.trace"
    with trace.recording(file):
        gofer.run(main)
    page = trace.summary(file)
    assert "\x1b" not in page
    assert r"evil\x1b[2J\nname" in page


def test_times_are_shown_as_people_write_them() -> None:
    assert [show_ns(ns) for ns in (0, 999, 1500, 12_345_678, 3.2e9, 5e12)] == [
        "0 ns",
        "999 ns",
        "1.5 µs",
        "12.3 ms",
        "3.2 s",
        "5000 s",
    ]


def test_a_million_events_are_summed_up_in_seconds(tmp_path: Path) -> None:
    file = tmp_path / "x.trace"
    rounds = 5_000 if TINY or SANITIZED else 170_000
    with trace.recording(file):
        ping_pong(1, rounds)
    begun = time.perf_counter()
    page = trace.summary(file)
    took = time.perf_counter() - begun
    assert len(trace.load(file)) >= 6 * rounds - 1000
    assert "ping" in page
    assert took < 5 * 4  # the bar is 5 s; this machine may be busy


# --- Perfetto ------------------------------------------------------------------------------------


def test_the_export_is_what_perfetto_reads(tmp_path: Path) -> None:
    file, out = tmp_path / "x.trace", tmp_path / "x.json"
    with trace.recording(file):
        trace_support.marked(2)
        trace_support.plain(2)
    n = trace.perfetto(file, out)
    data = json.loads(out.read_text())
    entries = data["traceEvents"]
    assert len(entries) == n
    t = trace.load(file)
    slices = [e for e in entries if e["ph"] == "X" and e["pid"] == 2]
    assert len(slices) == len(t.spans["g"])
    on_ps = [e for e in entries if e["ph"] == "X" and e["pid"] == 1 and e.get("cat") == "running"]
    assert sum(e["dur"] for e in on_ps) == pytest.approx(
        sum(g.running for g in t.goroutines) / 1e3, rel=1e-6
    )
    begins = {e["id"] for e in entries if e["ph"] == "s"}
    ends = {e["id"] for e in entries if e["ph"] == "f"}
    assert ends
    assert ends <= begins
    assert all({"ph", "pid", "name"} <= e.keys() for e in entries)
    assert all(e["ts"] >= 0 for e in entries if "ts" in e)
    regions = [e for e in entries if e["ph"] == "b" and e["cat"] == "region"]
    assert len(regions) == 11
