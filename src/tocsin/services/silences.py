"""Silences of notifications, as operators start and end them."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from typing_extensions import override

from .. import subjects
from ..domain.definition import is_name
from ..domain.duration import short
from ..domain.events import Actor, Message, Recorded, Silence, SilencesDefined
from ..domain.ids import notification_id
from ..domain.silence import (
    LONGEST_OF_OWNER_S,
    LONGEST_S,
    MAX_OF_NAMESPACES,
    MAX_OF_OWNER,
    MAX_OF_OWNERS,
    MAX_REASON,
    MAX_SILENCES,
    MAX_TAG,
    in_force,
)
from ..domain.text import counted
from ..ports import Clock, EventLog
from .documents import Document, Take, unlimited
from .operations.errors import NotFound, OperationError

_DAY_S = 86_400


class WrongSilence(OperationError):
    """A field of a silence is missing, or outside its limits."""

    code = "wrong-silence"


class TooManySilences(OperationError):
    """As many silences as the limit allows are in force."""

    code = "too-many-silences"


class Silences(Document[SilencesDefined, tuple[Silence, ...]]):
    """The silences of an installation; those in force are the newest version."""

    kind, scope = SilencesDefined, subjects.silences()

    def __init__(self, log: EventLog, clock: Clock, *, take: Take = unlimited) -> None:
        """`take` takes the room for a new silence alone.

        The end of a silence needs none, because its beginning took room.
        """
        super().__init__(log)
        self._clock = clock
        self._take_new = take

    @override
    def view(self, newest: Recorded[SilencesDefined] | None) -> tuple[Silence, ...]:
        """Return the silences in force, the oldest first."""
        return () if newest is None else in_force(newest.message, self._clock.now())

    async def start(
        self,
        *,
        job: str | None,
        tag: str | None,
        seconds: float,
        reason: str,
        by: Actor | None = None,
        is_operator: bool = True,
        reaches: Callable[[str], bool] | None = None,
    ) -> Silence:
        """Start a silence of a job, a tag or all jobs.

        `is_operator`: the caller operates the installation; the owner of a job may start fewer, each for a day at most.
        `reaches`: whether a job is in the namespaces of the caller; None: the caller is bound to none.

        Raises:
            OperationError: it is too long, has no reason, a long reason or a wrong name, or too many silences are in force.
        """
        _check(job, tag, seconds, reason, longest=LONGEST_S if is_operator else LONGEST_OF_OWNER_S)
        now = self._clock.now()
        silence = Silence(
            id=notification_id(job or "", now, "silence", tag or "", f"{by.full_name if by else ''} {reason}"),
            job=job,
            tag=tag,
            since=now,
            until=now + timedelta(seconds=seconds),
            by=by,
            reason=reason,
        )

        def edit(silences: tuple[Silence, ...]) -> SilencesDefined:
            _check_room(silences, None if is_operator else by)
            if reaches is not None and sum(s.job is not None and reaches(s.job) for s in silences) >= MAX_OF_NAMESPACES:
                raise TooManySilences(
                    f"{MAX_OF_NAMESPACES} silences of jobs in the namespaces of this token are in force: end one of them, or ask an operator"
                )
            return SilencesDefined(silences=(*silences, silence))

        async def take(_: Sequence[Message]) -> None:  # the event repeats the silences of others
            await self._take_new([SilencesDefined(silences=(silence,), by=by, reason=reason)])

        await self.replace(edit, by=by, reason=reason, take=take)
        return silence

    async def end(self, given: str, *, reason: str | None = None, by: Actor | None = None) -> Silence:
        """End a silence; `given`: its id.

        Raises:
            NotFound: no silence in force has this id.
        """
        ended: list[Silence] = []

        def edit(silences: tuple[Silence, ...]) -> SilencesDefined:
            ended[:] = [silence for silence in silences if silence.id == given]
            if not ended:
                raise silence_not_found(given)
            return SilencesDefined(silences=tuple(silence for silence in silences if silence.id != given))

        await self.replace(edit, by=by, reason=reason)
        return ended[0]


def silence_not_found(given: str) -> NotFound:
    """Return the error for an id that no silence in force has."""
    return NotFound(f"no silence {given[:64]!r} is in force: see `tocsin silences list`")


def _check_room(silences: Sequence[Silence], owner: Actor | None) -> None:
    """Check that there is room for a silence.

    `owner`: the caller, if it is not an operator.
    """
    if len(silences) >= MAX_SILENCES:
        raise TooManySilences(
            f"{MAX_SILENCES} silences are in force: end one of them, or silence a tag instead of its jobs"
        )
    if owner is None:
        return
    own = sum(silence.by is not None and silence.by.full_name == owner.full_name for silence in silences)
    if own >= MAX_OF_OWNER:
        raise TooManySilences(
            f"{MAX_OF_OWNER} silences of {owner.full_name} are in force, the most without the permission `cancel`: end one of them"
        )
    if len(silences) >= MAX_OF_OWNERS:
        raise TooManySilences(
            f"{len(silences)} silences are in force, and owners of jobs start none beyond {MAX_OF_OWNERS}: ask an operator"
        )


def _check(job: str | None, tag: str | None, seconds: float, reason: str, *, longest: float) -> None:
    if job is not None and not is_name(job):
        raise WrongSilence(f"{job[:64]!r} cannot be the name of a job")
    if tag is not None and not 0 < len(tag) <= MAX_TAG:
        raise WrongSilence(f"a tag has 1 to {MAX_TAG} characters, not {len(tag):,}")
    if not 0 < seconds <= longest:
        whose = "a silence" if longest == LONGEST_S else "a silence without the permission `cancel`"
        raise WrongSilence(f"{whose} lasts up to {_written(longest)}, not {_written(seconds)}")
    if not reason.strip():
        raise WrongSilence("a silence needs a reason, for those who wait for a notification")
    if len(reason) > MAX_REASON:
        raise WrongSilence(f"the reason has {len(reason):,} characters; write at most {MAX_REASON:,}")


def _written(seconds: float) -> str:
    """Return a length in days where it has whole days, as operators write it."""
    days, rest = divmod(seconds, _DAY_S)
    return counted(int(days), "day") if days and not rest else short(seconds)
