# SPDX-License-Identifier: Apache-2.0
"""Times functions by name, in whatever thread they run."""

import functools
import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """Seconds spent in the functions it was put around, by label.

    A function's time is without that of the timed functions which it calls, so that
    the labels add up. Constant cost of about a microsecond for each call.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._stacks = threading.local()

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Times the function `name` of a module or class from now on."""
        function = inspect.getattr_static(owner, name)
        if isinstance(function, classmethod):
            timed: Any = classmethod(self.around(function.__func__, label))
        else:
            timed = self.around(function, label)
        setattr(owner, name, timed)

    def around(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """`function`, timed."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            nested: list[float] = self._stacks.__dict__.setdefault("nested", [0.0])
            nested.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - start
                inner = nested.pop()
                nested[-1] += taken
                with self._lock:
                    self.seconds[label] += taken - inner

        return timed
