"""The hand-over of claims with a limit or an owner, after they are read back."""

from collections.abc import Sequence

from ...domain.task_board import AgentClaim, TaskBoard
from .claims import Releases
from .owners import Owners
from .task_sender import TaskSender


class LimitedHandOver:
    """Hands over claims; releases those beyond their limit, or of an earlier owner.

    Another matcher may believe that it leads, and claim at the same time. The log has one order, so in the fold up to a
    claim each matcher finds the same earlier claims.
    """

    def __init__(self, board: TaskBoard, owners: Owners, releases: Releases, sender: TaskSender) -> None:
        self._board = board
        self._owners = owners
        self._releases = releases
        self._sender = sender
        self._unread: list[AgentClaim] = []
        """Claims with a limit that the fold may not have reached yet."""

    async def stored(self, claims: Sequence[AgentClaim], *, upto: int) -> None:
        """Hand over claims without a limit or an owner; others wait for the fold.

        `upto`: the sequence up to which the log is folded.
        """
        contested = {claim.sequence for claim in claims if self._board.is_contested(claim.task)}
        await self._sender.send([claim for claim in claims if claim.sequence not in contested])
        self._unread += (claim for claim in claims if claim.sequence in contested)
        await self.read_back(upto=upto)

    async def read_back(self, *, upto: int) -> None:
        """Hand over the claims that the fold has reached."""
        reached = [claim for claim in self._unread if claim.sequence <= upto]
        self._unread = [claim for claim in self._unread if claim.sequence > upto]
        await self.send([claim for claim in reached if self._board.claim_of(*claim.task.key) is claim])

    async def send(self, claims: Sequence[AgentClaim]) -> None:
        """Hand over claims that the fold has reached, unless they must be released."""
        beyond = [claim for claim in claims if self._board.is_beyond_limit(claim) or self._owners.is_outdated(claim)]
        for claim in beyond:
            await self._releases.release(claim, "handed_back")
        await self._sender.send([claim for claim in claims if claim not in beyond])
