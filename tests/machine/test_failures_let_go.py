"""What a failed call held is released with its failure, not when Python next collects garbage: holds hang on it."""

import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator

import pytest

from persist.errors import Determinate, Indeterminate, LocationError
from persist.retry.attempts import Attempts
from persist.runtime import system
from persist.settings import Settings

Fails = Callable[[float], Awaitable[None]]

SETTINGS = Settings(retry_first_ms=1)


class Pin:
    """Stands for whatever must not outlive the call."""


async def _fails(seconds: float) -> None:
    raise Determinate("the store is away")


async def _is_unsure(seconds: float) -> None:
    raise Indeterminate("no answer")


async def _attempts(fails: Fails) -> None:
    attempts = Attempts(settings=SETTINGS, runtime=system())
    await attempts.repeat(attempts.deadline(0.1), fails)


async def _read(fails: Fails) -> None:
    attempts = Attempts(settings=SETTINGS, runtime=system())
    await attempts.read(attempts.deadline(0.1), fails, limit_ms=10)


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("fails", [_fails, _is_unsure])
@pytest.mark.parametrize("call", [_attempts, _read])
async def test_failed_call_holds_nothing(call: Callable[[Fails], Awaitable[None]], fails: Fails):
    async def caller() -> None:
        pin = Pin()
        held.append(weakref.ref(pin))
        await call(fails)

    held: list[weakref.ref[Pin]] = []
    with pytest.raises(LocationError):
        await caller()
    assert held[0]() is None
