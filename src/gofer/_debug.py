"""GOFERDEBUG: a comma-separated list of name=value, as GODEBUG is for Go."""

import os
import warnings

# What each of them takes: a whole number of milliseconds, or a switch.
MILLISECONDS = ("schedtrace", "stallwarn")
SWITCHES = ("affinity", "asyncpreemptoff", "scheddetail", "socket")

_warned: set[str] = set()


def options() -> dict[str, int]:
    """What the environment variable says now; an item without a value has the value 1.

    What it says wrongly is left out, and warned of once.

    >>> os.environ["GOFERDEBUG"] = "schedtrace=1000,asyncpreemptoff=1"
    >>> options()
    {'schedtrace': 1000, 'asyncpreemptoff': 1}
    """
    found = {}
    for item in os.environ.get("GOFERDEBUG", "").split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        value = value or "1"
        if name in MILLISECONDS:
            if value.isascii() and value.isdigit() and len(value) < 10:
                found[name] = int(value)
                continue
            wrong = f"{name}={value}: it takes a whole number of milliseconds"
        elif name in SWITCHES:
            if value in ("0", "1"):
                found[name] = int(value)
                continue
            wrong = f"{name}={value}: it takes 0 or 1"
        elif not name:
            continue
        else:
            known = ", ".join(sorted(MILLISECONDS + SWITCHES))
            wrong = f"{name}: there is no such setting; there are {known}"
        if wrong not in _warned:
            _warned.add(wrong)
            warnings.warn(f"GOFERDEBUG: {wrong}", RuntimeWarning, stacklevel=3)
    return found
