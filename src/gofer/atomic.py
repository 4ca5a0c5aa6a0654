"""Values that any thread may change, without a lock.

>>> hits = atomic.Int()
>>> hits.add(1)
1
>>> hits.load()
1
"""

from gofer._core import AtomicBool as Bool
from gofer._core import AtomicInt as Int
from gofer._core import AtomicRef as Ref

__all__ = ["Bool", "Int", "Ref"]
