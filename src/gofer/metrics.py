"""The runtime's numbers for Prometheus and OpenTelemetry.

>>> from prometheus_client import REGISTRY, start_http_server
>>> REGISTRY.register(gofer.metrics.Collector())  # doctest: +SKIP
>>> start_http_server(9000)  # doctest: +SKIP

>>> gofer.metrics.instrument()  # OpenTelemetry, with the global meter provider

Both read `runtime.stats()` when they are asked; in between they cost nothing. See docs/metrics.md
for the names. Each needs its package: `pip install 'gofer[metrics]'`, `pip install 'gofer[otel]'`.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gofer import runtime
from gofer.runtime import Histogram, Stats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import Metric

__all__ = ["Collector", "instrument"]

# Go's histograms have 162 buckets: too many for a time series each. These are powers of four, from
# a microsecond to a quarter of a minute, and are borders of Go's too.
BOUNDS = tuple((1 << bits) / 1e9 for bits in range(10, 35, 2))

# Go's names; see _prometheus_name. Those that only grow are counters.
ABOUT = {
    "/sched/gomaxprocs:threads": "The number of Ps: how many goroutines may run at once.",
    "/sched/goroutines-created:goroutines": "Goroutines started since the process began.",
    "/sched/goroutines/not-in-go:goroutines": "Goroutines in calls that block.",
    "/sched/goroutines/runnable:goroutines": "Goroutines that could run and wait for a P.",
    "/sched/goroutines/running:goroutines": "Goroutines that run.",
    "/sched/goroutines/waiting:goroutines": "Goroutines that wait for something.",
    "/sched/goroutines:goroutines": "Goroutines alive.",
    "/sched/latencies:seconds": "How long goroutines were runnable before they ran, one in eight.",
    "/sched/pauses/stopping/other:seconds": "How long it took to stop all Ps.",
    "/sched/pauses/total/other:seconds": "How long all Ps were stopped.",
    "/sched/threads/total:threads": "Threads of the runtime.",
    "/sync/mutex/wait/total:seconds": "The time that goroutines have waited for mutexes.",
}
COUNTERS = {"/sched/goroutines-created:goroutines", "/sync/mutex/wait/total:seconds"}

# What Go does not measure: name, what it is, and the value.
MORE_COUNTERS: tuple[tuple[str, str, Callable[[Stats], int]], ...] = (
    ("switches", "Goroutines resumed.", lambda s: s.switches),
    ("steals", "Goroutines that a P took from another.", lambda s: s.steals),
    ("handoffs", "Ps taken from goroutines that blocked or ran for long.", lambda s: s.handoffs),
    ("preemptions", "Goroutines stopped because their slice was over.", lambda s: s.preemptions),
)
MORE_GAUGES: tuple[tuple[str, str, Callable[[Stats], int]], ...] = (
    ("sched_idle_procs", "Ps without work.", lambda s: s.idle_procs),
    ("sched_global_queue_goroutines", "Goroutines in the global queue.", lambda s: s.global_queue),
    (
        "sched_local_queue_goroutines",
        "Goroutines in the queues of Ps.",
        lambda s: sum(p.queue + p.runnext for p in s.procs),
    ),
    ("sched_timers", "Timers that are set.", lambda s: s.timers),
    ("netpoll_descriptors", "File descriptors in the poller.", lambda s: s.poller.descriptors),
)
THREADS: dict[str, Callable[[Stats], int]] = {
    "idle": lambda s: s.idle_threads,
    "spinning": lambda s: s.spinning_threads,
    "blocked": lambda s: s.blocked_threads,
    "stopped": lambda s: s.stopped_threads,
}
GOROUTINES: dict[str, Callable[[Stats], int]] = {
    "runnable": lambda s: s.runnable,
    "running": lambda s: s.running,
    "waiting": lambda s: s.waiting,
    "syscall": lambda s: s.syscall,
}


def _need(module: str, extra: str) -> Any:
    """The package, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not module.startswith(exc.name):
            raise
        raise ModuleNotFoundError(
            f"this needs the package {module.partition('.')[0]}: pip install 'gofer[{extra}]'",
            name=exc.name,
        ) from None


def _cumulative(h: Histogram) -> list[tuple[float, int]]:
    """How many times were at most so long, for each of BOUNDS."""
    found, below, i = [], 0, 0
    for bound in BOUNDS:
        while i < len(h.counts) and h.buckets[i + 1] <= bound * (1 + 1e-9):
            below += h.counts[i]
            i += 1
        found.append((bound, below))
    return found


def _estimated_sum(h: Histogram) -> float:
    """The sum of all times, each taken for the middle of its bucket."""
    total = 0.0
    for n, low, high in zip(h.counts, h.buckets[:-1], h.buckets[1:], strict=True):
        if n:
            low = max(low, 0.0)
            total += n * (low if high == float("inf") else (low + max(high, 0.0)) / 2)
    return total


# --- Prometheus ----------------------------------------------------------------------------------


def _prometheus_name(name: str) -> str:
    """As Go's client library does it: /sched/latencies:seconds is gofer_sched_latencies_seconds."""
    return "gofer" + re.sub(r"[^a-z0-9]", "_", name)


class Collector:
    """All numbers of the runtime, for a registry of prometheus_client.

    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> registry.register(gofer.metrics.Collector())
    """

    def __init__(self) -> None:
        self._core = _need("prometheus_client.metrics_core", "metrics")

    def __repr__(self) -> str:
        return "<gofer.metrics.Collector>"

    def describe(self) -> "Iterable[Metric]":
        """The metrics, without which the registry would have to collect them to know their names.

        >>> names = [metric.name for metric in collector.describe()]
        """
        return self.collect()

    def collect(self) -> "Iterator[Metric]":
        """The numbers of this moment. Called by the registry.

        >>> numbers = {metric.name: metric for metric in collector.collect()}
        """
        for name, value in runtime.metrics().items():
            yield self._from_go(_prometheus_name(name), ABOUT[name], name in COUNTERS, value)
        s = runtime.stats()
        gauge, counter = self._core.GaugeMetricFamily, self._core.CounterMetricFamily
        for name, about, of in MORE_COUNTERS:
            yield counter(f"gofer_sched_{name}", about, of(s))
        yield counter("gofer_netpoll_polls", "Calls of the kernel's poller.", s.poller.polls)
        yield counter("gofer_netpoll_events", "What these brought.", s.poller.events)
        for name, about, of in MORE_GAUGES:
            yield gauge(f"gofer_{name}", about, of(s))
        threads = gauge("gofer_sched_threads", "Threads that do no work.", labels=["state"])
        for state, of in THREADS.items():
            threads.add_metric([state], of(s))
        yield threads
        waits = gauge("gofer_netpoll_waiting", "Goroutines that wait for IO.", labels=["direction"])
        waits.add_metric(["read"], s.poller.readers)
        waits.add_metric(["write"], s.poller.writers)
        yield waits

    def _from_go(
        self, name: str, about: str, counts: bool, value: int | float | Histogram
    ) -> "Metric":
        made: Metric
        if isinstance(value, Histogram):
            buckets = [(f"{bound:g}", n) for bound, n in _cumulative(value)]
            buckets.append(("+Inf", value.total))
            made = self._core.HistogramMetricFamily(
                name, about, buckets=buckets, sum_value=_estimated_sum(value)
            )
        elif counts:
            made = self._core.CounterMetricFamily(name, about, value)
        else:
            made = self._core.GaugeMetricFamily(name, about, value)
        return made


# --- OpenTelemetry -------------------------------------------------------------------------------

Reading = Callable[[Stats], "Iterable[tuple[float, dict[str, str]]]"]


def _by_state(of_state: dict[str, Callable[[Stats], int]]) -> Reading:
    return lambda s: [(of(s), {"state": state}) for state, of in of_state.items()]


def _latencies(s: Stats) -> list[tuple[float, dict[str, str]]]:
    h = s.latencies
    found: list[tuple[float, dict[str, str]]] = [
        (n, {"le": f"{bound:g}"}) for bound, n in _cumulative(h)
    ]
    return [*found, (h.total, {"le": "+Inf"})]


def _one(of: Callable[[Stats], int]) -> Reading:
    return lambda s: [(of(s), {})]


def instrument(meter: "Meter | None" = None) -> None:
    """Make OpenTelemetry's instruments for the runtime, with this meter or with a new one.

    The scheduling latencies are a counter with the attribute `le`, as in Prometheus: the API has no
    histogram for what has been counted already.

    >>> gofer.metrics.instrument()
    """
    otel = _need("opentelemetry.metrics", "otel")
    if meter is None:
        import gofer

        meter = otel.get_meter("gofer", gofer.__version__)
    m: Meter = meter

    def observing(read: Reading) -> "list[Callable[[CallbackOptions], Iterable[Observation]]]":
        return [lambda options: [otel.Observation(*one) for one in read(runtime.stats())]]

    for make, name, unit, about, read in (
        (
            m.create_observable_up_down_counter,
            "gofer.goroutine.count",
            "{goroutine}",
            "Goroutines alive.",
            _by_state(GOROUTINES),
        ),
        (
            m.create_observable_counter,
            "gofer.goroutine.created",
            "{goroutine}",
            "Goroutines started since the process began.",
            _one(lambda s: s.created),
        ),
        (
            m.create_observable_up_down_counter,
            "gofer.processor.limit",
            "{thread}",
            "The number of Ps: how many goroutines may run at once.",
            _one(lambda s: s.gomaxprocs),
        ),
        (
            m.create_observable_up_down_counter,
            "gofer.thread.count",
            "{thread}",
            "Threads of the runtime.",
            _one(lambda s: s.threads),
        ),
        (
            m.create_observable_counter,
            "gofer.schedule.latency",
            "{goroutine}",
            "Goroutines, one in eight, that ran after having been runnable for at most `le` s.",
            _latencies,
        ),
        (
            m.create_observable_up_down_counter,
            "gofer.schedule.queue",
            "{goroutine}",
            "Goroutines in run queues.",
            _one(lambda s: s.global_queue + sum(p.queue + p.runnext for p in s.procs)),
        ),
        *(
            (m.create_observable_counter, f"gofer.schedule.{name}", "1", about, _one(of))
            for name, about, of in MORE_COUNTERS
        ),
    ):
        make(name, callbacks=observing(read), unit=unit, description=about)
