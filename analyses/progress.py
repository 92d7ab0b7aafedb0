"""How far a long analysis has come, for whoever listens.

Analyses print nothing. The front door listens for the length of a ``with`` block::

    with listening(lambda what, done, total: ...):
        ablate_every_head(model)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener(what, done, total)`` as analyses in this block go on."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def track(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is called with how much more is done."""
    listener, done = _listener.get(), 0

    def advance(n: int = 1) -> None:
        nonlocal done
        done += n
        if listener is not None:
            listener(what, done, total)

    yield advance
