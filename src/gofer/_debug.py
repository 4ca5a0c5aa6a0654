"""GOFERDEBUG: a comma-separated list of name=value, as GODEBUG is for Go."""

import os


def options() -> dict[str, str]:
    """What the environment variable says now; an item without a value has the value "1".

    >>> os.environ["GOFERDEBUG"] = "schedtrace=1000,asyncpreemptoff=1"
    >>> options()
    {'schedtrace': '1000', 'asyncpreemptoff': '1'}
    """
    items = (item.partition("=") for item in os.environ.get("GOFERDEBUG", "").split(",") if item)
    return {name.strip(): value.strip() or "1" for name, _, value in items}
