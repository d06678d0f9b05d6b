"""Notary: signs the ledger and the log, so that a later change shows.

It reads each stream from its newest checkpoint to its end, once a minute, and signs a checkpoint for at most 10,000 messages
each. A checkpoint is stored by compare-and-set, so that of two notaries a single notary continues the chain; the lease only
saves the second reader. After a crash the next leader reads the messages after the newest stored checkpoint again.
"""

from datetime import datetime
from typing import Final

from .. import telemetry
from ..archive.checkpoints import (
    SIGNED_STREAMS,
    Checkpoint,
    CheckpointStore,
    Page,
    RangeDigest,
    SignedCheckpoint,
)
from ..archive.signing_keys import KeyRefused, SigningKey
from ..domain.errors import TocsinError
from ..domain.ids import fingerprint
from ..engine.leader_election import LeaderElection, lease_access
from ..engine.stage import Access, Stage, StageContext
from ..ports import Clock, LogUnavailable, OutdatedState, StoredLog
from ..subjects import NOTARY_LEASE, Bucket, Stream

MAX_MESSAGES: Final = 10_000
"""The most messages that a checkpoint covers."""

_log = telemetry.get_logger("tocsin.notary")


class SignedLogCutOff(TocsinError):
    """A stream ends before the end of its newest checkpoint."""

    code = "signed-log-cut-off"


class Notary:
    """Signs, as long as it leads."""

    def __init__(
        self,
        stored: StoredLog,
        checkpoints: CheckpointStore,
        leadership: LeaderElection,
        clock: Clock,
        key: SigningKey,
        *,
        installation: str,
        interval: float = 60.0,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        """`stored`: the streams with their archive. `interval`: seconds between two runs."""
        self._stored = stored
        self._checkpoints = checkpoints
        self.leadership = leadership
        self._clock = clock
        self._key = key
        self._installation = installation
        self._interval = interval
        self._max_messages = max_messages
        self._read: dict[Stream, int] = {}
        """The sequence up to which each stream was read: it may end with events of the other."""

    async def run(self) -> None:
        """Sign until cancelled. A failure only costs time: what is not signed is read again."""
        while True:
            for stream in SIGNED_STREAMS:
                try:
                    if (now := await self.leadership.time()) is not None:
                        await self.run_once(stream, now)
                except (LogUnavailable, OutdatedState) as error:
                    _log.info("signing delayed", action="notary-waits", stream=stream, reason=str(error))
                except SignedLogCutOff as error:
                    _log.error("the log is shorter than what was signed", action="notary-cut-off", reason=str(error))
                except Exception as error:  # noqa: BLE001 - a failure of the log may be over soon
                    _log.warning(
                        "signing failed; retrying later", action="notary-failed", stream=stream, exc_info=error
                    )
            await self._clock.sleep(self._interval)

    async def run_once(self, stream: Stream, now: datetime) -> int:
        """Sign the messages of a stream that are not signed yet; return their number.

        Raises:
            SequenceConflict: another notary was faster.
            SignedLogCutOff: the stream lacks messages that were signed.
            CheckpointDamaged: the newest checkpoint cannot be read.
            LogUnavailable: the log did not answer.
        """
        page = await self._checkpoints.newest(stream)
        signed = page.checkpoints[-1].content().last if page.checkpoints else 0
        end = (await self._stored.extent(stream)).last
        after = max(signed, self._read.get(stream, 0))
        if end < signed:
            raise SignedLogCutOff(
                f"stream {stream} ends at sequence {end}, but {signed} was signed: run `tocsin audit --public-key`"
            )
        messages, pending = 0, RangeDigest()
        async for portion in self._stored.messages(stream, after=after, upto=end):
            for message in portion:
                pending.take(message)
                if pending.messages >= self._max_messages:
                    page = await self._sign(stream, page, pending, now)
                    messages, pending = messages + pending.messages, RangeDigest()
        if pending.messages:
            await self._sign(stream, page, pending, now)
        self._read[stream] = end
        return messages + pending.messages

    async def _sign(self, stream: Stream, page: Page, pending: RangeDigest, now: datetime) -> Page:
        before = page.checkpoints[-1] if page.checkpoints else None
        newest = before.content() if before is not None else None
        checkpoint = Checkpoint(
            installation=self._installation,
            stream=stream,
            number=newest.number + 1 if newest is not None else 1,
            first=newest.last + 1 if newest is not None else 1,
            last=pending.last,
            messages=pending.messages,
            digest=pending.hexdigest(),
            previous=before.digest if before is not None else "",
            signed=now,
        )
        return await self._checkpoints.append(stream, page, SignedCheckpoint.sign(checkpoint, self._key))


def _start(context: StageContext) -> Notary | None:
    settings = context.settings.notary
    if settings.key is None:
        return None
    try:
        key = SigningKey.from_pem(settings.key.read_text())
    except (OSError, UnicodeDecodeError, KeyRefused) as error:
        raise KeyRefused(
            f"notary.key: {settings.key}: {error}. Make a key with `tocsin keys create`, readable to the notary."
        ) from None
    return Notary(
        context.stored,
        CheckpointStore(context.projections),
        context.elect(NOTARY_LEASE),
        context.clock,
        key,
        installation=fingerprint(context.report_key),
        interval=settings.interval,
    )


NOTARY: Final = Stage(
    name="notary",
    purpose="signs the log, if it has a key",
    consumes="all events of the log, also archived",
    decides="signed checkpoints",
    access=Access(
        follows=SIGNED_STREAMS,
        looks_up=(Bucket.CURSORS,),
        writes=(*lease_access(NOTARY_LEASE), (Bucket.CHECKPOINTS, ">")),
        reads_archive=True,
    ),
    start=_start,
    loops=(lambda notary: notary.leadership.run(), Notary.run),
    is_installed=lambda settings: settings.notary.key is not None,
    needs="`notary.key`",
)
