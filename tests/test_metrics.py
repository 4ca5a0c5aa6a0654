"""gofer.metrics, with the real packages."""

from typing import Any

import pytest

import gofer
from gofer import metrics, runtime
from gofer.runtime import Histogram
from tests.support import run_program


def work() -> None:
    """Something to count."""

    async def child() -> None:
        for _ in range(10):
            await gofer.gosched()

    async def main() -> None:
        for g in [gofer.go(child) for _ in range(100)]:
            await g

    gofer.run(main)


# --- Prometheus ----------------------------------------------------------------------------------


def samples() -> dict[str, float]:
    """What a scrape would bring."""
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    registry.register(metrics.Collector())
    text = client.generate_latest(registry).decode()
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def test_prometheus_gets_gos_metrics_and_ours() -> None:
    before = samples()
    work()
    after = samples()
    assert after["gofer_sched_gomaxprocs_threads"] == gofer.gomaxprocs()
    created = "gofer_sched_goroutines_created_goroutines_total"
    assert after[created] - before[created] == 101
    switches = "gofer_sched_switches_total"
    assert after[switches] - before[switches] >= 1000
    assert after["gofer_sched_goroutines_goroutines"] == 0
    for name in (
        "gofer_sched_steals_total",
        "gofer_sched_handoffs_total",
        "gofer_sched_preemptions_total",
        "gofer_sync_mutex_wait_total_seconds_total",
        "gofer_sched_threads_total_threads",
        "gofer_sched_timers",
        'gofer_sched_threads{state="idle"}',
        'gofer_netpoll_waiting{direction="read"}',
        "gofer_netpoll_polls_total",
    ):
        assert after[name] >= before[name] >= 0


def test_prometheus_counts_goroutines_of_a_run() -> None:
    pytest.importorskip("prometheus_client")

    async def waiter(ch: gofer.Chan[None]) -> None:
        await ch.recv()

    async def main() -> dict[str, float]:
        ch: gofer.Chan[None] = gofer.Chan()
        waiters = [gofer.go(waiter, ch) for _ in range(20)]
        for g in waiters:
            while g.state != "waiting":
                await gofer.gosched()
        found = samples()
        ch.close()
        for g in waiters:
            with pytest.raises(gofer.ChannelClosed):
                await g
        return found

    found = gofer.run(main)
    assert found["gofer_sched_goroutines_goroutines"] == 21
    assert found["gofer_sched_goroutines_waiting_goroutines"] >= 20


def test_the_histogram_of_prometheus_is_cumulative_and_agrees_with_stats() -> None:
    work()
    found = samples()
    total = runtime.stats().latencies.total
    name = "gofer_sched_latencies_seconds"
    buckets = [
        (float(key.split('"')[1]), value)
        for key, value in found.items()
        if key.startswith(f"{name}_bucket")
    ]
    assert [bound for bound, _ in buckets] == sorted(bound for bound, _ in buckets)
    counts = [value for _, value in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == found[f"{name}_count"] == total > 0
    assert found[f"{name}_sum"] > 0


def test_the_names_are_those_of_prometheus() -> None:
    pytest.importorskip("prometheus_client")
    names = [metric.name for metric in metrics.Collector().describe()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("gofer_") for name in names)
    assert all(metric.documentation for metric in metrics.Collector().collect())


def test_every_metric_of_the_runtime_is_described() -> None:
    assert set(metrics.ABOUT) == set(runtime.metrics())


def test_buckets_are_borders_of_gos() -> None:
    h = Histogram(tuple(range(162)), runtime.stats().latencies.buckets)
    found = dict(metrics._cumulative(h))
    for bound, below in found.items():
        parts = zip(h.counts, h.buckets[1:], strict=True)
        assert below == sum(n for n, end in parts if end <= bound * 1.001)
        assert any(abs(end - bound) < bound / 1000 for end in h.buckets)


def test_the_sum_is_near_the_truth() -> None:
    buckets = (float("-inf"), 0.0, 1.0, 2.0, float("inf"))
    assert metrics._estimated_sum(Histogram((5, 10, 4, 1), buckets)) == 10 * 0.5 + 4 * 1.5 + 2


# --- OpenTelemetry -------------------------------------------------------------------------------


def observed() -> dict[str, dict[tuple[tuple[str, Any], ...], float]]:
    """What a reader would bring."""
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    metrics.instrument(provider.get_meter("test"))
    data = reader.get_metrics_data()
    provider.shutdown()
    return {
        metric.name: {
            tuple(sorted(point.attributes.items())): point.value
            for point in metric.data.data_points
        }
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_gets_the_numbers() -> None:
    before = observed()
    work()
    after = observed()
    assert after["gofer.processor.limit"] == {(): gofer.gomaxprocs()}
    assert after["gofer.goroutine.created"][()] - before["gofer.goroutine.created"][()] == 101
    assert set(after["gofer.goroutine.count"]) == {
        (("state", state),) for state in ("runnable", "running", "waiting", "syscall")
    }
    switches = "gofer.schedule.switches"
    assert after[switches][()] - before[switches][()] >= 1000
    latencies = after["gofer.schedule.latency"]
    assert latencies[(("le", "+Inf"),)] == runtime.stats().latencies.total
    assert set(after) >= {
        "gofer.thread.count",
        "gofer.schedule.queue",
        "gofer.schedule.steals",
        "gofer.schedule.handoffs",
        "gofer.schedule.preemptions",
    }


def test_opentelemetry_works_with_the_global_provider_too() -> None:
    pytest.importorskip("opentelemetry")
    assert metrics.instrument() is None


# --- Without the packages ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("prometheus_client", "metrics", "Collector()"),
        ("opentelemetry", "otel", "instrument()"),
    ],
)
def test_a_package_that_is_missing_is_named(package: str, extra: str, use: str) -> None:
    source = f"""
        import sys
        sys.modules[{package!r}] = None
        import gofer
        try:
            gofer.metrics.{use}
        except ModuleNotFoundError as exc:
            print(exc)
        """
    out = run_program(source).check()
    assert package in out
    assert f"pip install 'gofer[{extra}]'" in out


def test_importing_the_module_imports_neither() -> None:
    source = """
        import gofer.metrics, sys
        print({"prometheus_client", "opentelemetry"} & set(sys.modules))
        """
    assert run_program(source).check() == "set()\n"
