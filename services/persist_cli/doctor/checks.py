"""Checks of this machine: Python, the packages, the generated stubs. A check reports what it found and what to do."""

import importlib
import importlib.util
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from persist.redaction import scrub

OK: Final = "ok"
WARN: Final = "warn"
BAD: Final = "bad"

_MARKS: Final = {OK: "✓", WARN: "!", BAD: "✗"}
_DISTRIBUTION: Final = "persist-tvc"
_NOT_FOR_USERS: Final = ("all", "bench", "dev")
_MISSING: Final = "missing"
_STUBS: Final = ("types_pb2", "errors_pb2", "state_pb2", "shard_pb2")
_GRPC_STUBS: Final = ("shard_pb2_grpc",)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. ``next_step`` is empty when nothing has to be done."""

    name: str
    state: str
    found: str
    next_step: str = ""

    @property
    def mark(self) -> str:
        """The state as a character."""
        return _MARKS[self.state]

    def scrubbed(self) -> "Check":
        """The same without secrets: before lines are broken, in which none could be found."""
        return Check(self.name, self.state, scrub(self.found), scrub(self.next_step))

    def as_json(self) -> dict[str, str]:
        """The check for programs."""
        return {"check": self.name, "state": self.state, "found": self.found, "next_step": self.next_step}


def verdict(found: Sequence[Check]) -> str:
    """All checks in one sentence."""
    bad, warnings = (sum(check.state == state for check in found) for state in (BAD, WARN))
    if not bad and not warnings:
        return "all is well"
    return f"{bad} to mend, {warnings} to know about"


def machine() -> Iterator[Check]:
    """Python, required packages and stubs."""
    yield _python()
    yield from _packages()
    yield _stubs()


def _python() -> Check:
    # An older one than 3.11 cannot even read this file.
    return Check("python", OK, f"{platform.python_version()} at {sys.executable}")


def _packages() -> Iterator[Check]:
    """Every required package and its version, and the extras; what is missing or older than required is bad."""
    try:
        wanted = requires(_DISTRIBUTION) or []
        yield Check("persist", OK, version(_DISTRIBUTION))
    except PackageNotFoundError:
        yield Check("persist", WARN, "not installed, only importable", "pip install -e . for the persist command")
        return
    checks = [_package(requirement) for requirement in wanted if "extra ==" not in requirement]
    yield from (check for check in checks if check.state != OK)
    fine = [f"{check.name} {check.found}" for check in checks if check.state == OK]
    yield Check("packages", OK, ", ".join(fine))
    yield from _extras(wanted)


def _extras(wanted: Sequence[str]) -> Iterator[Check]:
    """Which extras are there. One that is not is no fault; a package of one that is older than required is."""
    groups: dict[str, list[Check]] = {}
    for requirement in wanted:
        _, marked, name = requirement.partition("extra == ")
        if marked and (name := name.strip("'\"")) not in _NOT_FOR_USERS:
            groups.setdefault(name, []).append(_package(requirement))
    lacking = {name for name, checks in groups.items() if any(check.found == _MISSING for check in checks)}
    old = {check.name: check for checks in groups.values() for check in checks if check.state != OK}
    yield from (check for check in old.values() if check.found != _MISSING)
    there = ", ".join(sorted(groups.keys() - lacking)) or "none"
    yield Check("extras", OK, f"{there}; not installed: {', '.join(sorted(lacking))}" if lacking else there)


def _package(requirement: str) -> Check:
    name = requirement.split(";")[0].strip()
    bare = name.split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip()
    try:
        found = version(bare)
    except PackageNotFoundError:
        return Check(bare, BAD, _MISSING, f"pip install '{name}'")
    lowest = name.partition(">=")[2].split(",")[0]
    if lowest and _numbers(found) < _numbers(lowest):
        return Check(bare, BAD, f"{found}, older than {lowest}", f"pip install '{name}'")
    return Check(bare, OK, found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in text.split(".") if piece.isdecimal())


def _stubs() -> Check:
    """Generated code refuses a runtime older than its generator, at import."""
    has_grpc = importlib.util.find_spec("grpc") is not None
    try:
        for stub in (*_STUBS, *(_GRPC_STUBS if has_grpc else ())):
            importlib.import_module(f"persist.v1.{stub}")
    except Exception as error:
        step = "install grpcio and protobuf at least as new as the stubs, or run `make proto`"
        return Check("stubs", BAD, str(error).splitlines()[0], step)
    return Check("stubs", OK, f"the installed {'gRPC and ' * has_grpc}protobuf accept them")
