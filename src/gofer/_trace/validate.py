"""Does the stream of events make sense? A second opinion, written apart from traceread.c."""

from collections import defaultdict

from gofer._trace.read import Trace

IDLE, RUNNABLE, RUNNING, WAITING, DEAD = "idle", "runnable", "running", "waiting", "dead"


class Checker:
    """The state machine of every goroutine, P and thread, in a trace that misses nothing.

    A goroutine is created, then runnable, running, waiting, runnable ... and ends; it runs on one
    thread; a thread runs one goroutine and has one P at most; a P is had by one thread at most; and
    no more Ps are in use than gomaxprocs says.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.problems: list[str] = []
        self.counts: dict[str, int] = defaultdict(int)
        self.state: dict[int, str] = {}
        self.runs_on: dict[int, int] = {}  # goroutine -> thread
        self.current: dict[int, int] = {}  # thread -> goroutine
        self.has: dict[int, int] = {}  # thread -> P
        self.holder: dict[int, int] = {}  # P -> thread
        self.m_thread: dict[int, int] = {}
        self.procs = 0
        self.inside = True  # perhaps the trace began inside a run: what was before is not known
        self.world = 0
        self.last_ts = 0
        self.where = ""

    def problem(self, text: str) -> None:
        self.problems.append(f"{self.where}: {text}")

    def check(self) -> list[str]:
        for i, event in enumerate(self.trace.events()):
            self.where = f"event {i} {event}"
            if event.ts < self.last_ts:
                self.problem("time goes back")
            self.last_ts = event.ts
            self.counts[event.kind.name] += 1
            handler = getattr(self, f"on_{event.kind.name.lower()}", None)
            if handler is not None:
                handler(event.thread, *event.args)
            if len(self.has) > self.procs > 0 and self.world == 0:
                self.problem(f"{len(self.has)} Ps in use, gomaxprocs is {self.procs}")
        self.where = "end"
        return self.problems

    def expect(self, g: int, *states: str) -> None:
        now = self.state.get(g)
        if now is None and self.inside:
            return
        if now not in states:
            self.problem(f"goroutine {g} is {now}, not {' or '.join(states)}")

    # --- the run ---

    def on_run_begin(self, thread: int, m: int, procs: int) -> None:
        if self.has or self.current:
            self.problem(f"a run begins while {self.has} {self.current}")
        self.state.clear()
        self.m_thread = {m: thread}
        self.procs = procs
        self.inside = False

    def on_run_end(self, thread: int) -> None:
        if self.has or self.current:
            self.problem(f"a run ends while {self.has} {self.current}")
        left = {g: s for g, s in self.state.items() if s != DEAD}
        if left and not self.inside:
            self.problem(f"a run ends with goroutines alive: {left}")
        self.procs = 0

    def on_procs(self, thread: int, n: int) -> None:
        self.procs = n

    def on_stw_begin(self, thread: int, kind: int) -> None:
        self.world += 1

    def on_stw_end(self, thread: int) -> None:
        self.world -= 1
        if self.world not in (0, 1):
            self.problem("the world starts twice")

    # --- Ps ---

    def on_status(self, thread: int, m: int, p: int, g: int) -> None:
        if thread in self.m_thread.values() and self.m_thread.get(m) != thread:
            self.problem("a thread is two Ms")
        if m in self.m_thread and self.m_thread[m] == thread:
            self.problem("an M introduces itself twice")
        self.m_thread[m] = thread
        if p:
            self.take(thread, p - 1)
        if g:
            self.state[g] = RUNNING
            self.current[thread] = g

    def take(self, thread: int, p: int) -> None:
        if thread in self.has:
            self.problem(f"thread {thread} has P {self.has[thread]} and takes {p}")
        if p in self.holder:
            self.problem(f"P {p} is had by thread {self.holder[p]}")
        self.has[thread] = p
        self.holder[p] = thread

    def on_proc_start(self, thread: int, p: int) -> None:
        self.take(thread, p)

    def on_proc_stop(self, thread: int) -> None:
        if thread not in self.has:
            self.problem(f"thread {thread} gives up a P and has none")
        else:
            self.holder.pop(self.has.pop(thread))

    def on_proc_taken(self, thread: int, p: int, m: int) -> None:
        owner = self.m_thread.get(m)
        if owner is not None and self.has.get(owner) == p:
            del self.has[owner]
            del self.holder[p]
        elif p in self.holder:
            self.problem(f"P {p} is taken from M {m}, but thread {self.holder[p]} has it")

    # --- goroutines ---

    def on_go_create(
        self, thread: int, g: int, parent: int, name: int, site: int, flags: int
    ) -> None:
        if g in self.state:
            self.problem(f"goroutine {g} is created twice")
        self.state[g] = RUNNABLE

    def on_go_start(self, thread: int, g: int) -> None:
        self.expect(g, RUNNABLE)
        if thread in self.current:
            self.problem(f"thread {thread} still runs goroutine {self.current[thread]}")
        self.state[g] = RUNNING
        self.current[thread] = g

    def stopped(self, thread: int, g: int, state: str) -> None:
        self.expect(g, RUNNING)
        if self.current.pop(thread, g) != g:
            self.problem(f"goroutine {g} does not run on thread {thread}")
        self.state[g] = state

    def on_go_stop(self, thread: int, g: int, reason: int, stack: int) -> None:
        self.stopped(thread, g, RUNNABLE)

    def on_go_block(self, thread: int, g: int, reason: int, stack: int) -> None:
        if reason == 0:
            self.problem("a goroutine waits for nothing")
        self.stopped(thread, g, WAITING)

    def on_go_unblock(self, thread: int, g: int) -> None:
        self.expect(g, WAITING)
        self.state[g] = RUNNABLE

    def on_go_requeue(self, thread: int, g: int) -> None:
        self.expect(g, WAITING)
        self.state[g] = RUNNABLE

    def on_go_end(self, thread: int, g: int, how: int) -> None:
        if self.state.get(g) == DEAD:
            self.problem(f"goroutine {g} ends twice")
        if self.current.get(thread) == g:
            del self.current[thread]
        self.state[g] = DEAD


def validate(trace: Trace) -> list[str]:
    """What is wrong with an exact trace, in words. Nothing should be."""
    problems = Checker(trace).check()
    if not trace.exact:
        problems.append("the trace is not exact: events are missing")
    if trace.repairs:
        problems.append(
            f"the reader made {trace.repairs} repairs, the first at event "
            f"{trace.raw['repaired_at']}"
        )
    return problems
