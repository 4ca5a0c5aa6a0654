"""Whatever takes a number of seconds says in the same words what it wants."""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import gofer
from gofer import context

Taker = Callable[[Any], object]


def block(s: Any) -> None:
    gofer.block(gofer.gosched(), timeout=s)


# What it calls itself, and something that passes the number on.
TAKERS: dict[str, Taker] = {
    "sleep()": gofer.sleep,
    "after()": gofer.after,
    "after_func()": lambda s: gofer.after_func(s, print).stop(),
    "Timer()": gofer.Timer,
    "Timer.reset()": lambda s: gofer.Timer(100).reset(s),
    "Timer.reset() of after_func()": lambda s: gofer.after_func(100, print).reset(s),
    "Ticker()": gofer.Ticker,
    "Ticker.reset()": lambda s: gofer.Ticker(100).reset(s),
    "timeout()": gofer.timeout,
    "with_timeout()": context.with_timeout,
    "with_deadline()": context.with_deadline,
    "block()": block,
}
each = pytest.mark.parametrize("what", TAKERS)


def run(what: str, s: Any) -> None:
    """Call it in a goroutine; block() in a plain one."""

    async def main() -> None:
        TAKERS[what](s)

    def plain() -> None:
        TAKERS[what](s)

    gofer.run(plain if what == "block()" else main)


@each
@pytest.mark.parametrize("bad", ["x", "1", b"1", [1], 1j, object(), gofer.sleep])
def test_what_is_no_number_is_a_type_error_that_names_both(what: str, bad: Any) -> None:
    with pytest.raises(TypeError) as info:
        run(what, bad)
    name = what.removesuffix(" of after_func()")
    assert str(info.value) == f"{name} needs a number of seconds, not {bad!r}"


@pytest.mark.parametrize("what", [w for w in TAKERS if w not in ("timeout()", "block()")])
def test_none_is_a_type_error_too(what: str) -> None:
    """But for those for which it means: no limit."""
    with pytest.raises(TypeError, match=r"\(\) needs a number of seconds, not None"):
        run(what, None)


@pytest.mark.parametrize("what", ["timeout()", "block()"])
def test_none_means_no_limit(what: str) -> None:
    run(what, None)


@each
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_value_error_that_names_both(what: str, bad: float) -> None:
    name = re.escape(what.removesuffix(" of after_func()"))
    with pytest.raises(ValueError, match=f"^{name} needs a finite number of seconds, not {bad!r}$"):
        run(what, bad)


@each
def test_an_int_beyond_all_floats_is_a_value_error(what: str) -> None:
    with pytest.raises(ValueError, match=r"\(\) needs a finite number of seconds, not "):
        run(what, 10**400)


@each
@pytest.mark.parametrize("s", [5, 5.5, True, Fraction(7, 2), 10**12, 1e300])
def test_any_number_will_do(what: str, s: Any) -> None:
    run(what, s)


@pytest.mark.parametrize("what", ["Ticker()", "Ticker.reset()"])
@pytest.mark.parametrize("bad", [0, 0.0, -1, -0.5])
def test_a_period_must_be_more_than_zero(what: str, bad: float) -> None:
    name = re.escape(what)
    with pytest.raises(ValueError, match=f"^{name} needs more than 0 seconds, not {bad!r}$"):
        run(what, bad)
