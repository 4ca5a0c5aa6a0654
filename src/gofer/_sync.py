"""What sync offers beyond the engine's primitives: WaitGroup.go, Once, Pool."""

import functools
import gc
import inspect
import types
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar, overload

from gofer import _core
from gofer._errors import Cancelled
from gofer._future import is_future
from gofer._hooks import is_async

T = TypeVar("T")


async def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `fn`, plain or async.

    A goroutine or a future that it returns is its result. They can be awaited, too, but go on by
    themselves; a coroutine or an operation would never begin.
    """
    result = fn(*args, **kwargs)
    if not inspect.isawaitable(result) or isinstance(result, _core.Goroutine) or is_future(result):
        return result
    return await result


def name_of(fn: Any) -> str:
    """What to call a goroutine that runs `fn` inside a function of ours."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def go_wrapped(
    wrapper: Callable[..., Coroutine[Any, Any, T]],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
) -> _core.Goroutine[T]:
    """Start wrapper(fn, args, kwargs), created where the user's code stands.

    If `fn` is plain, so is the goroutine, which runs the wrapper's coroutine on its own thread.
    """
    if is_async(fn):
        return _core.go_here(wrapper, fn, args, kwargs, name=name)
    return _core.go_here(lambda: wrapper(fn, args, kwargs), name=name)


class WaitGroup(_core.WaitGroup):
    """Wait for a number of goroutines to end.

    >>> wg = WaitGroup()
    >>> for url in urls:
    ...     wg.go(fetch, url)
    >>> await wg.wait()
    """

    __slots__ = ()

    @overload
    def go(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        name: str | None = None,
        **kwargs: Any,
    ) -> _core.Goroutine[T]: ...
    @overload
    def go(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, **kwargs: Any
    ) -> _core.Goroutine[T]: ...
    def go(
        self, fn: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any
    ) -> _core.Goroutine[Any]:
        """Start a goroutine, plain or async, and count it until it has ended, however it does.

        If it fails and nobody has its handle, the program ends, and wait() does not return before.

        >>> wg.go(fetch, url)
        """
        if not callable(fn):
            raise TypeError(f"WaitGroup.go() needs a function, not {fn!r}")
        self.add()
        try:
            g = _core.go_for(fn, *args, name=name, **kwargs)
        except BaseException:
            self.done()
            raise
        self._count(g)
        return g


class Once:
    """Do something once, whoever comes first.

    >>> once = Once()
    >>> await once.do(load_config)
    """

    __slots__ = ("_done", "_mu")

    def __init__(self) -> None:
        self._done = False
        self._mu = _core.Mutex()

    async def do(self, fn: Callable[..., Any], *args: Any) -> None:
        """Operation: call `fn`, plain or async, unless that has been done; return when it has.

        If it raises, it counts as done, and only this caller gets the exception. A caller that is
        cancelled meanwhile leaves it to the next one.

        >>> await once.do(load_config, "app.toml")
        """
        if self._done:
            await _core.sleep(0)  # an operation like all: it raises if it must
            return
        async with self._mu:
            if not self._done:
                try:
                    await _call(fn, *args)
                except Cancelled:
                    raise  # the caller was given up, the function has not failed
                except BaseException:
                    self._done = True
                    raise
                self._done = True

    def __repr__(self) -> str:
        state = "done" if self._done else "running" if self._mu.locked() else "new"
        return f"<Once {state} at {id(self):#x}>"


@overload
def once_value(fn: Callable[[], Awaitable[T]]) -> Callable[[], Coroutine[Any, Any, T]]: ...
@overload
def once_value(fn: Callable[[], T]) -> Callable[[], Coroutine[Any, Any, T]]: ...
def once_value(fn: Callable[[], Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
    """Make `fn`, plain or async, a function that is called once and gives its result for ever.

    If it raises, every caller gets that exception. A caller that is cancelled while it runs the
    function leaves that to the next one.

    >>> config = once_value(load_config)
    >>> value = await config()
    """
    if not callable(fn):
        raise TypeError(f"once_value() needs a function, not {fn!r}")
    once = Once()
    call: Callable[[], Any] | None = fn  # not kept when it has been called
    value: Any = None
    error: BaseException | None = None
    traceback: types.TracebackType | None = None  # each raise would add to the exception's own

    async def run() -> None:
        nonlocal call, value, error, traceback
        assert call is not None
        try:
            value = await _call(call)
        except Cancelled:
            raise
        except BaseException as exc:
            error, traceback = exc, exc.__traceback__
        call = None

    @functools.wraps(fn)
    async def get() -> Any:
        await once.do(run)
        if error is not None:
            raise error.with_traceback(traceback)
        return value

    del get.__wrapped__  # that is `fn`
    return get


class Pool(Generic[T]):
    """Objects to use again instead of making new ones; none is kept for long.

    Each P has a store of its own. What is not taken for one to two garbage collections goes.

    >>> buffers = Pool(lambda: bytearray(65536))
    >>> buf = buffers.get()
    >>> buffers.put(buf)
    """

    __slots__ = ("__weakref__", "_new", "_old", "_stores")

    def __init__(self, new: Callable[[], T]) -> None:
        if not callable(new):
            raise TypeError(f"Pool() needs a function that makes a new object, not {new!r}")
        self._new = new
        self._stores: dict[int, list[T]] = {}
        self._old: dict[int, list[T]] = {}  # from before the last collection
        _pools.add(self)

    def get(self) -> T:
        """An object that was put back, or a new one.

        >>> buf = buffers.get()
        """
        own = _core.proc_id()
        for stores in (self._stores, self._old):
            for key in (own, *list(stores)):
                try:
                    return stores[key].pop()
                except (KeyError, IndexError):  # none there, or another thread was faster
                    continue
        return self._new()

    def put(self, x: T) -> None:
        """Give an object back for others to use. None is ignored.

        >>> buffers.put(buf)
        """
        if x is not None:
            self._stores.setdefault(_core.proc_id(), []).append(x)

    def __repr__(self) -> str:
        kept = sum(map(len, (*list(self._stores.values()), *list(self._old.values()))))
        return f"<Pool {kept} kept, new: {self._new!r}, at {id(self):#x}>"

    def _age(self) -> None:
        self._old = self._stores
        self._stores = {}


_pools: "weakref.WeakSet[Pool[Any]]" = weakref.WeakSet()


def _age_pools(phase: str, info: dict[str, int]) -> None:
    if phase == "start" and info.get("generation") == 2:
        for pool in list(_pools):
            pool._age()


gc.callbacks.append(_age_pools)

for _object in (WaitGroup, Once, once_value, Pool):
    _object.__module__ = "gofer"
del _object
