"""What `gofer top` shows: from snapshots to lines of text. No terminal is needed for any of it."""

import os
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gofer._cli.text import printable

Stats = dict[str, Any]
Line = list[tuple[str, str]]
"""Pieces of a line: a style (see SGR in top.py) and a text."""

BUSY = {"running", "syscall"}
HISTORY = 60
TOTALS = ("switches", "steals", "handoffs", "preemptions", "created")
OF_PROC = {
    "switches": "schedtick",
    "steals": "steals",
    "handoffs": "handoffs",
    "preemptions": "preemptions",
}


# --- Figures -------------------------------------------------------------------------------------


class Proc(NamedTuple):
    """A P in the time between two pictures."""

    id: int
    busy: float
    """The share of the looks at which it was not idle."""
    calls: float
    """The share at which it was in user code that had not come back for a while."""
    rates: dict[str, float]
    now: Stats


@dataclass
class Picture:
    """All that is shown at one moment."""

    stats: Stats
    seconds: float
    rates: dict[str, float]
    procs: list[Proc]
    latency: tuple[float, float] | None
    """How long goroutines waited for a P: half of them, and 99 of 100, not longer than this."""
    groups: list[dict[str, Any]] = field(default_factory=list)
    cpu: float | None = None
    """Of the whole process; 1.0 is a core."""
    memory: int | None = None


def quantiles(now: Stats, before: Stats | None) -> tuple[float, float] | None:
    """The median and the 99th percentile of what has been measured between two histograms."""
    counts = list(now["counts"])
    if before is not None:
        counts = [a - b for a, b in zip(counts, before["counts"], strict=True)]
    total, ends, found = sum(counts), now["buckets"][1:], []
    if total <= 0:
        return None
    for q in (0.5, 0.99):
        seen = 0
        for n, end in zip(counts, ends, strict=True):
            seen += n
            if seen >= q * total:
                found.append(float(end))  # of the last bucket: infinity
                break
    return found[0], found[1]


def _rate(now: Stats, before: Stats, name: str, seconds: float) -> float:
    return float(max(0, now.get(name, 0) - before.get(name, 0))) / seconds


class Sampler:
    """Turns many looks into a picture.

    A snapshot says what a P does at that moment, not for how long it has been busy, so we look many
    times between two pictures.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.looks: list[Stats] = []
        self.before: Stats | None = None
        self.latencies: Stats | None = None
        self.groups: list[dict[str, Any]] = []
        self.history: dict[int, list[float]] = {}
        self.usage = self._usage()

    def add(self, stats: Stats) -> None:
        """Another snapshot."""
        if self.before is None:
            self.before = stats
        self.looks.append(stats)

    @property
    def wants_latencies(self) -> bool:
        """A histogram is long: one is enough for a picture."""
        return not any("latencies" in look for look in self.looks)

    def restart(self) -> None:
        """Forget the looks: after a pause they are of another time."""
        self.looks, self.before = [], None
        self.usage = self._usage()

    def picture(self) -> Picture | None:
        """What the looks since the last picture show. None if there were too few."""
        if self.before is None or len(self.looks) < 2:
            return None
        before, now = self.before, self.looks[-1]
        seconds = max(now["time"] - before["time"], 1e-6)
        rates = {name: _rate(now, before, name, seconds) for name in TOTALS}
        procs = [self._proc(p, before, seconds) for p in now["procs"]]
        for p in procs:
            self.history.setdefault(p.id, []).append(p.busy)
            del self.history[p.id][:-HISTORY]
        cpu, memory = self._used()
        latency = None
        for histogram in [look["latencies"] for look in self.looks if "latencies" in look]:
            latency = quantiles(histogram, self.latencies)
            self.latencies = histogram
        self.before, self.looks = now, []
        return Picture(now, seconds, rates, procs, latency, self.groups, cpu, memory)

    def _proc(self, now: Stats, before: Stats, seconds: float) -> Proc:
        earlier = {p["id"]: p for p in before["procs"]}.get(now["id"], now)
        states = [p["status"] for look in self.looks for p in look["procs"] if p["id"] == now["id"]]
        rates = {name: _rate(now, earlier, key, seconds) for name, key in OF_PROC.items()}
        busy = sum(state in BUSY for state in states) / max(len(states), 1)
        calls = sum(state == "syscall" for state in states) / max(len(states), 1)
        return Proc(now["id"], busy, calls, rates, now)

    def _usage(self) -> tuple[float, float, int] | None:
        """Now, the CPU time that the process has used, its memory: from the kernel, which also
        knows when the process itself does not answer."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            memory = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return None
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), memory

    def _used(self) -> tuple[float | None, int | None]:
        before, self.usage = self.usage, self._usage()
        if before is None or self.usage is None:
            return None, None
        cpu = (self.usage[1] - before[1]) / max(self.usage[0] - before[0], 1e-6)
        return cpu, self.usage[2]


# --- Numbers as people read them -----------------------------------------------------------------


def number(n: float) -> str:
    """1234 is 1,234; 1234567 is 1.23M."""
    for unit, scale in (("G", 1e9), ("M", 1e6)):
        if n >= scale:
            return f"{n / scale:.3g}{unit}"
    if n >= 10_000:
        return f"{n / 1e3:.3g}k"
    return f"{n:,.0f}" if n >= 10 or n == int(n) else f"{n:.1f}"


def bytes_(n: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n / 1e3:.0f} kB"


def span(seconds: float) -> str:
    """A time in the two largest units that it has."""
    s = int(seconds)
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02}s"
    if s < 86400:
        return f"{s // 3600}h{s % 3600 // 60:02}m"
    return f"{s // 86400}d{s % 86400 // 3600:02}h"


def duration(seconds: float) -> str:
    """A short time."""
    if seconds == float("inf"):
        return "for ever"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


# --- Lines ---------------------------------------------------------------------------------------

SORTS = ("number", "function", "state", "waiting for")


@dataclass
class Look:
    """How it is to be shown."""

    width: int = 100
    height: int | None = None
    """None: as many lines as it takes."""
    unicode: bool = True
    sort: int = 0
    reverse: bool = False
    scroll: int = 0
    note: str = ""
    """Something about the moment: paused, or no answer."""
    bad: bool = False


def bar(share: float, width: int, unicode: bool) -> tuple[str, str]:
    """A share as a bar: the full part and the empty part."""
    if not unicode:
        full = round(share * width)
        return "#" * full, "." * (width - full)
    full, half = divmod(round(share * width * 2), 2)
    drawn = "━" * full + "╸" * half
    return drawn, "─" * (width - len(drawn))


def sparks(values: list[float], unicode: bool) -> str:
    """A history as one character for each moment."""
    steps = "▁▂▃▄▅▆▇" if unicode else ".:-=+*#"  # never the whole height: lines stay apart
    return "".join(steps[round(v * 6)] for v in values)


def head(hello: dict[str, Any], picture: Picture, look: Look) -> list[Line]:
    """The process as a whole."""
    s, dot = picture.stats, "  ·  " if look.unicode else "  |  "
    threaded = " free-threaded" if hello.get("free_threaded") else ""
    about = [
        f"process {hello.get('pid', '?')}",
        f"Python {hello.get('python', '?')}{threaded}",
        f"up {span(time.time() - hello.get('started', time.time()))}",
    ]
    if picture.cpu is not None and picture.memory is not None:
        about += [f"cpu {picture.cpu:.0%}", f"memory {bytes_(picture.memory)}"]
    title: Line = [
        ("title", printable(str(hello.get("program", "?")))),
        ("dim", dot + printable(dot.join(about), dot)),
    ]
    if look.note:
        title.append(("bad" if look.bad else "warn", "  " + look.note))
    r, polled = picture.rates, s.get("poller", {})
    latency = "-" if picture.latency is None else duration(picture.latency[0])
    worst = "-" if picture.latency is None else duration(picture.latency[1])

    def figures(name: str, *pairs: tuple[str, str]) -> Line:
        line: Line = [("head", f"{name:<12}")]
        for value, what in pairs:
            line += [("", f"{value:>8} "), ("dim", f"{what:<12}")]
        return line

    def n(name: str) -> str:
        return number(s.get(name, 0))

    def per_second(name: str) -> str:
        return number(r[name]) + "/s"

    return [
        title,
        [],
        figures(
            "goroutines",
            (n("goroutines"), "alive"),
            (n("running"), "running"),
            (n("runnable"), "runnable"),
            (n("waiting"), "waiting"),
            (n("syscall"), "in calls"),
        ),
        figures(
            "threads",
            (n("threads"), "alive"),
            (n("idle_threads"), "idle"),
            (n("spinning_threads"), "spinning"),
            (n("blocked_threads"), "in calls"),
            (n("stopped_threads"), "stopped"),
        ),
        figures(
            "queues",
            (n("global_queue"), "global"),
            (number(sum(p.now["queue"] for p in picture.procs)), "local"),
            (n("timers"), "timers"),
            (number(polled.get("readers", 0) + polled.get("writers", 0)), "wait for IO"),
        ),
        figures(
            "rates",
            (per_second("switches"), "switches"),
            (per_second("steals"), "steals"),
            (per_second("handoffs"), "hand-offs"),
            (per_second("preemptions"), "preemptions"),
            (per_second("created"), "created"),
        ),
        figures("latency", (latency, "half within"), (worst, "99% within")),
    ]


def proc_table(sampler: Sampler, picture: Picture, look: Look) -> list[Line]:
    """A line for each P."""
    titles = ("queue", "switches/s", "steals/s", "hand-offs/s", "preempted/s", "timers", "M", "G")
    widths = [max(7, len(title)) for title in titles]
    fixed = 4 + 5 + sum(w + 1 for w in widths)
    wide = max(10, min(30, look.width - fixed - 2))
    past = max(0, min(HISTORY, look.width - fixed - wide - 4))
    first = f"{'P':<4}{'busy':<{wide + 5}}" + (f"  {'history':>{past}}" if past >= 7 else "")
    cells = "".join(f" {title:>{w}}" for title, w in zip(titles, widths, strict=True))
    lines: list[Line] = [[("head", first + cells)]]
    shown = picture.procs
    most = len(shown) if look.height is None else max(4, (look.height - 12) // 2)
    for p in shown[:most]:
        full, empty = bar(p.busy, wide, look.unicode)
        calls = min(len(full), round(p.calls * wide))
        line: Line = [
            ("", f"{p.id:<4}"),
            ("bar", full[: len(full) - calls]),
            ("warn", full[len(full) - calls :]),
            ("dim", empty),
            ("", f"{p.busy:>5.0%}"),
        ]
        if past >= 7:
            history = sampler.history.get(p.id, [])[-past:]
            line += [("", "  "), ("bar", f"{sparks(history, look.unicode):>{past}}")]
        queue = number(p.now["queue"]) + ("+1" if p.now.get("runnext") else "")
        values = [
            queue,
            *(number(p.rates[name]) for name in OF_PROC),
            number(p.now.get("timers", 0)),
            _id(p.now.get("thread")),
            _id(p.now.get("goroutine")),
        ]
        line.append(("", "".join(f" {v:>{w}}" for v, w in zip(values, widths, strict=True))))
        lines.append(line)
    if len(shown) > most:
        average = sum(p.busy for p in shown[most:]) / len(shown[most:])
        more = f"... and {len(shown) - most} more Ps, {average:.0%} busy"
        lines.append([("dim", more)])
    return lines


def _id(value: Any) -> str:
    return "-" if value is None or (isinstance(value, int) and value < 0) else str(value)


def ordered(groups: list[dict[str, Any]], sort: int, reverse: bool) -> list[dict[str, Any]]:
    """The groups in the order that was asked for: the largest first, or by the alphabet."""
    keys = (
        lambda g: (-g["count"], g["name"]),
        lambda g: (g["name"], -g["count"]),
        lambda g: (g["state"], -g["count"], g["name"]),
        lambda g: (g["wait_reason"] == "", g["wait_reason"], -g["count"]),
    )
    return sorted(groups, key=keys[sort], reverse=reverse)


STATE_STYLES = {"running": "bar", "runnable": "warn", "syscall": "warn", "waiting": "dim"}


def group_table(picture: Picture, look: Look, height: int | None) -> list[Line]:
    """Goroutines by function and state."""
    groups = ordered(picture.groups, look.sort, look.reverse)
    mark = ("▲" if look.reverse else "▼") if look.unicode else ("^" if look.reverse else "v")
    titles = ["number", "state", "waiting for", "function"]
    at = ("number", "state", "waiting for", "function").index(SORTS[look.sort])
    titles[at] += " " + mark
    lines: list[Line] = [
        [("head", f"{titles[0]:>9}  {titles[1]:<9}  {titles[2]:<22}  {titles[3]}")]
    ]
    if height is not None:
        height = max(1, height - 1)
        look.scroll = max(0, min(look.scroll, len(groups) - height))
        groups = groups[look.scroll : look.scroll + height]
    for g in groups:
        state = printable(g["state"])
        lines.append(
            [
                ("", f"{number(g['count']):>9}  "),
                (STATE_STYLES.get(state, ""), f"{state:<9}  "),
                ("", f"{printable(g['wait_reason']):<22}  "),
                ("title", printable(g["name"])),
            ]
        )
    return lines


KEYS = "q quit   p pause   s sort   r reverse   + - interval   arrows move   ? help"


def screen(
    hello: dict[str, Any], sampler: Sampler, picture: Picture, look: Look, footer: bool = False
) -> list[Line]:
    """All of it."""
    lines = [
        *head(hello, picture, look),
        [],
        *proc_table(sampler, picture, look),
        [],
    ]
    left = None if look.height is None else look.height - len(lines) - footer
    lines += group_table(picture, look, left)
    if look.height is not None:
        lines = lines[: look.height - footer]
        lines += [[]] * (look.height - footer - len(lines))
    if footer:
        lines.append([("key", f"{KEYS:<{look.width}}")])
    return lines
