"""Events of namespaces: the parts of an installation that belong to different teams."""

from typing import Literal

from .message import Actor, Message, Sequence


class Namespace(Message):
    """A declared namespace."""

    name: str
    """The name: the first part of the names of its jobs and queues."""
    description: str = ""
    """Its purpose, for people."""
    max_jobs: int | None = None
    """The jobs that may be registered in it; None: any number."""
    max_running: int | None = None
    """The tasks of its queues that workers may have at a time; None: any number."""
    executions_per_day: int | None = None
    """The executions of its jobs that may begin in a day (UTC); None: any number."""
    bytes_per_day: int | None = None
    """The bytes of events that its executions may store in a day (UTC); None: any number."""


class NamespacesDefined(Message):
    """An administrator declared the namespaces of the installation.

    The event has all of them, and its sequence is the version.
    """

    v: Literal[1] = 1
    """The version of the format."""
    type: Literal["namespaces-defined"] = "namespaces-defined"
    """The type of the event."""
    previous: Sequence = 0
    """The sequence of the preceding declaration; 0: none."""
    namespaces: tuple[Namespace, ...] = ()
    """All namespaces, sorted by name."""
    by: Actor | None = None
    """The administrator."""
    reason: str | None = None
    """The administrator's reason."""
