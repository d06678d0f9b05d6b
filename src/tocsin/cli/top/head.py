"""The head of the screen: versions, leader and problems."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ... import __version__
from ...domain.text import counted
from ...subjects import TICKER_LEASE
from .texts import plain


@dataclass(frozen=True, slots=True)
class Head:
    """The state of an installation as a whole."""

    line: str
    problems: tuple[str, ...]


class _Server(BaseModel):
    version: str = "unknown"


class _Lease(BaseModel):
    name: str
    holder: str


class _Status(BaseModel):
    """The fields of a status that are shown. An older API leaves out the problems."""

    root: str
    server: _Server = _Server()
    leases: list[_Lease] | None = None
    problems: list[str] = []


def head_of(document: Mapping[str, Any]) -> Head:
    """Return the head of the screen for the document of `tocsin status`."""
    status = _Status.model_validate(document)
    problems = counted(len(status.problems), "problem") if status.problems else "no problems"
    versions = f"tocsin {__version__} · nats-server {plain(status.server.version)}"
    line = f"{plain(status.root)} · {problems} · {_leader(status)} · {versions}"
    return Head(line, tuple(status.problems))


def _leader(status: _Status) -> str:
    """Return the process whose ticker decides when jobs run."""
    if status.leases is None:
        return "leader unknown"
    holder = next((lease.holder for lease in status.leases if lease.name == TICKER_LEASE), None)
    return "no leader" if holder is None else f"leader {plain(holder)}"
