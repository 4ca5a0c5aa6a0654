"""The garbage collector beside very many goroutines. docs/gc.md has the figures."""

import gc
import threading
from typing import Self

from gofer import _core


class gc_tuned:  # reads as a statement
    """Make Python's garbage collector cheap beside very many goroutines, until the block ends.

    What is alive at the beginning is frozen: the collector does not look at it any more. A
    collection then comes after `threshold` new objects, not after some hundreds. When goroutines
    that will live long have been started, `freeze()` does the same for them. The settings are the
    process's; what they were is restored when the last such block ends.

    Objects are still freed when nobody holds them. Of what is frozen, cycles that become garbage,
    leaked goroutines among them, are found after the block.

    >>> with gofer.runtime.gc_tuned() as tuned:
    ...     for _ in range(10_000):
    ...         gofer.go(session)
    ...     tuned.freeze()
    """

    __slots__ = ("_inside", "_threshold")
    __module__ = "gofer.runtime"

    _lock = threading.Lock()
    _blocks = 0
    _before: tuple[tuple[int, int, int], int] = ((0, 0, 0), 0)  # thresholds, what was frozen
    _ours: tuple[int, int, int] | None = None

    def __init__(self, threshold: int = 100_000) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int):
            raise TypeError(f"the threshold must be an int, not {threshold!r}")
        if not 1 <= threshold < 2**31:
            raise ValueError(f"the threshold must be between 1 and 2**31 - 1, not {threshold}")
        self._threshold = threshold
        self._inside = False

    @property
    def threshold(self) -> int:
        """After how many new objects a collection comes.

        >>> gofer.runtime.gc_tuned(50_000).threshold
        50000
        """
        return self._threshold

    def freeze(self) -> None:
        """Collect garbage once more, and do not look at what is alive now until the block ends.

        >>> with gofer.runtime.gc_tuned() as tuned:
        ...     tuned.freeze()
        """
        if not self._inside:
            raise RuntimeError("freeze() outside the block of gc_tuned()")
        gc.collect()
        _core.spares_clear()  # which would be used again, for what lives shorter
        gc.freeze()

    def __enter__(self) -> Self:
        cls = gc_tuned
        with cls._lock:
            if self._inside:
                raise RuntimeError("this gc_tuned() is in use: make another one")
            self._inside = True
            now = gc.get_threshold()
            if cls._blocks == 0:
                cls._before = (now, gc.get_freeze_count())
            cls._blocks += 1
            if now[0] > 0:  # else the user wants no collections at all
                cls._ours = (max(self.threshold, now[0]), now[1], now[2])
                gc.set_threshold(*cls._ours)
        self.freeze()
        return self

    def __exit__(self, *exc: object) -> None:
        cls = gc_tuned
        with cls._lock:
            self._inside = False
            cls._blocks -= 1
            if cls._blocks > 0:
                return
            thresholds, frozen = cls._before
            if gc.get_threshold() == cls._ours:  # else somebody has set others meanwhile
                gc.set_threshold(*thresholds)
            cls._ours = None
            if frozen == 0:  # else some are the user's, and nobody can tell which
                gc.unfreeze()

    def __repr__(self) -> str:
        return f"<gc_tuned, threshold {self.threshold}{', in use' if self._inside else ''}>"
