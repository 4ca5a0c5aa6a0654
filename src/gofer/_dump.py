"""What goroutines do and where they stand, as text in Go's format."""

import linecache
import time
import types
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

from gofer import _core

# Of a deeper stack only the innermost and the outermost frames are shown.
FRAMES = 50
ELSEWHERE = "\tgoroutine running on other thread; stack unavailable"
IDS = 10  # of a group that are named

Places = tuple[tuple[types.CodeType, int], ...]  # code and line, innermost first


class Seen(NamedTuple):
    """What one look at a goroutine has shown. The keys are those of stacks in `Dump.known`."""

    id: int
    parent_id: int
    name: str
    status: str
    minutes: int
    locked: bool
    leaked: bool
    stack: bytes
    on_thread: bytes | None  # the frames further out; None: not seen
    site: bytes


class Dump:
    """One dump. Many goroutines stand in the same place: the text of that is made once."""

    def __init__(self) -> None:
        self.known: dict[bytes, Places] = {}
        self.texts: dict[bytes, str] = {}
        self.sites: dict[bytes, tuple[str, str]] = {}
        self.checked: set[str] = set()

    def look(
        self, goroutines: Iterable[_core.Goroutine[Any]], leaked: Set[int] = frozenset()
    ) -> list[Seen]:
        """Look at each; those that run, or are parked in the middle of plain code, all at once."""
        now = time.monotonic()
        seen: list[Seen] = []
        on_threads: list[int] = []
        for g in goroutines:
            state, reason, since, locked, stack, on, site = _core.look(g, self.known)
            minutes = max(int(now - since), 0) // 60 if since else 0
            if on:
                on_threads.append(len(seen))
            elif state == "dead":
                continue
            thread = None if on else b""
            seen.append(
                Seen(
                    *(g.id, g.parent_id, g.name, reason or state, minutes, locked, g.id in leaked),
                    *(stack, thread, site),
                )
            )
        if on_threads:
            threads = _core.look_at_threads(self.known)
            for i in on_threads:
                seen[i] = seen[i]._replace(on_thread=threads.get(seen[i].id))
        return seen

    def block(self, s: Seen) -> str:
        """All about one, as Go writes it."""
        return f"goroutine {s.id} [{self._status(s)}]:\n{self._body(s, s.parent_id)}"

    def groups(self, seen: list[Seen]) -> Iterator[str]:
        """Those that do the same in the same place once, the largest group first."""
        alike: dict[tuple[object, ...], list[Seen]] = {}
        for s in seen:
            outer = s.on_thread and self._stack(s.on_thread)
            # Not the keys: the same line may be reached by several instructions.
            key = (s.status, s.locked, s.leaked, self._stack(s.stack), outer, self._site(s.site))
            alike.setdefault(key, []).append(s)
        for group in sorted(alike.values(), key=len, reverse=True):
            longest = max(group, key=lambda s: s.minutes)
            if len(group) == 1:
                yield self.block(longest)
                continue
            ids = ", ".join(str(s.id) for s in group[:IDS]) + ", ..." * (len(group) > IDS)
            parents = {s.parent_id for s in group}
            body = self._body(longest, parents.pop() if len(parents) == 1 else 0)
            yield f"{len(group)} goroutines [{self._status(longest)}]: {ids}\n{body}"

    def _status(self, s: Seen) -> str:
        return (
            s.status
            + " (leaked)" * s.leaked
            + (f", {s.minutes} minutes" if s.minutes else "")
            + ", locked to thread" * s.locked
        )

    def _body(self, s: Seen, parent_id: int) -> str:
        text = self._stack(s.stack)
        if s.on_thread is None:
            text += "\n" * (text != "") + ELSEWHERE
        elif s.on_thread:
            text += "\n" * (text != "") + self._stack(s.on_thread)
        if s.id == 1:
            return text
        function, where = self._site(s.site)
        of = f" in goroutine {parent_id}" if parent_id else ""
        outermost = self.known[s.on_thread or s.stack]
        named = outermost and s.name not in (outermost[-1][0].co_qualname, outermost[-1][0].co_name)
        name = f" as {s.name!r}" if named else ""
        text += "\n" * (text != "")
        return f"{text}created by {function}{of}{name}\n\t{where}"

    def _stack(self, key: bytes) -> str:
        if (text := self.texts.get(key)) is None:
            places = self.known[key]
            elided = len(places) - 2 * FRAMES
            if elided > 0:
                inner = [self._frame(*p) for p in places[:FRAMES]]
                outer = [self._frame(*p) for p in places[-FRAMES:]]
                text = "\n".join([*inner, f"...{elided} frames elided...", *outer])
            else:
                text = "\n".join(self._frame(*p) for p in places)
            self.texts[key] = text
        return text

    def _frame(self, code: types.CodeType, line: int) -> str:
        if code.co_filename not in self.checked:
            self.checked.add(code.co_filename)
            linecache.checkcache(code.co_filename)
        source = linecache.getline(code.co_filename, line).strip()
        text = f"{code.co_qualname}()\n\t{code.co_filename}:{line}"
        return f"{text}\n\t\t{source}" if source else text

    def _site(self, key: bytes) -> tuple[str, str]:
        if (site := self.sites.get(key)) is None:
            site = "?", "?:0"
            for code, line in self.known[key]:
                site = code.co_qualname, f"{code.co_filename}:{line}"
            self.sites[key] = site
        return site


def blocks(goroutines: Iterable[_core.Goroutine[Any]]) -> list[str]:
    """A text for each."""
    dump = Dump()
    return [dump.block(s) for s in dump.look(goroutines)]
