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


class Group:
    """Goroutines that look the same."""

    __slots__ = ("count", "ids", "longest", "parents")

    def __init__(self, first: Seen) -> None:
        self.count = 0
        self.ids: list[int] = []
        self.parents: set[int] = set()
        self.longest = first


class Dump:
    """One dump. Many goroutines stand in the same place: the text of that is made once."""

    def __init__(self) -> None:
        self.known: dict[bytes, Places] = {}
        self.texts: dict[bytes, str] = {}
        self.sites: dict[bytes, tuple[str, str]] = {}
        self.checked: set[str] = set()

    def blocks(
        self, goroutines: Iterable[_core.Goroutine[Any]], leaked: Set[int] = frozenset()
    ) -> list[str]:
        """A text for each."""
        texts: list[str] = []
        on_threads: list[tuple[int, Seen]] = []
        for s in self._look(goroutines, leaked):
            if s.on_thread is None:
                on_threads.append((len(texts), s))
            texts.append(self._block(s))
        for i, s in self._look_at_threads(on_threads):
            texts[i] = self._block(s)
        return texts

    def groups(
        self, goroutines: Iterable[_core.Goroutine[Any]], leaked: Set[int] = frozenset()
    ) -> list[str]:
        """Those that do the same in the same place once, the largest group first."""
        alike: dict[tuple[object, ...], Group] = {}
        on_threads: list[tuple[int, Seen]] = []
        for s in self._look(goroutines, leaked):
            if s.on_thread is None:
                on_threads.append((0, s))
            else:
                self._add_to_group(alike, s)
        for _, s in self._look_at_threads(on_threads):
            self._add_to_group(alike, s)
        groups = sorted(alike.values(), key=lambda group: group.count, reverse=True)
        return [self._group(group) for group in groups]

    def _look(self, goroutines: Iterable[_core.Goroutine[Any]], leaked: Set[int]) -> Iterator[Seen]:
        # Nothing that the collector counts is kept for each: of so many it would start again and
        # again, and stop the program for longer than the dump does.
        now = time.monotonic()
        for g in goroutines:
            state, reason, since, locked, stack, on, site = _core.look(g, self.known)
            if state == "dead" and not on:
                continue
            minutes = max(int(now - since), 0) // 60 if since else 0
            thread = None if on else b""
            yield Seen(
                *(g.id, g.parent_id, g.name, reason or state, minutes, locked, g.id in leaked),
                *(stack, thread, site),
            )

    def _look_at_threads(self, seen: list[tuple[int, Seen]]) -> Iterator[tuple[int, Seen]]:
        """Those that run, or are parked in the middle of plain code: all at once."""
        threads = _core.look_at_threads(self.known) if seen else {}
        for i, s in seen:
            yield i, s._replace(on_thread=threads.get(s.id))

    def _add_to_group(self, alike: dict[tuple[object, ...], Group], s: Seen) -> None:
        outer = s.on_thread and self._stack(s.on_thread)
        # Not the keys: the same line may be reached by several instructions.
        key = (s.status, s.locked, s.leaked, self._stack(s.stack), outer, self._site(s.site))
        group = alike.get(key)
        if group is None:
            group = alike[key] = Group(s)
        group.count += 1
        if len(group.ids) < IDS:
            group.ids.append(s.id)
        if s.minutes > group.longest.minutes:
            group.longest = s
        group.parents.add(s.parent_id)

    def _group(self, group: Group) -> str:
        s = group.longest
        if group.count == 1:
            return self._block(s)
        ids = ", ".join(map(str, group.ids)) + ", ..." * (group.count > IDS)
        body = self._body(s, group.parents.pop() if len(group.parents) == 1 else 0)
        return f"{group.count} goroutines [{self._status(s)}]: {ids}\n{body}"

    def _block(self, s: Seen) -> str:
        """All about one, as Go writes it."""
        body = self._body(s, s.parent_id)
        return f"goroutine {s.id} [{self._status(s)}]:" + "\n" * (body != "") + body

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

    def source(self, code: types.CodeType, line: int) -> str:
        """The text of that line, or nothing."""
        if code.co_filename not in self.checked:
            self.checked.add(code.co_filename)
            linecache.checkcache(code.co_filename)
        return linecache.getline(code.co_filename, line).strip()

    def _frame(self, code: types.CodeType, line: int) -> str:
        source = self.source(code, line)
        text = f"{code.co_qualname}()\n\t{code.co_filename}:{line}"
        return f"{text}\n\t\t{source}" if source else text

    def _site(self, key: bytes) -> tuple[str, str]:
        if (site := self.sites.get(key)) is None:
            site = "?", "?:0"
            for code, line in self.known[key]:
                site = code.co_qualname, f"{code.co_filename}:{line}"
            self.sites[key] = site
        return site
