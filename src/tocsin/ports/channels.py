"""Messages that no stream stores, between workers, stages, the API and users outside."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

ReceiveHoldList: TypeAlias = Callable[[str, str, bytes], None]
"""Takes the name and the id of the subject, and the body; it returns at once."""
ReceiveBody: TypeAlias = Callable[[bytes], None]
"""Takes the body of a message; it returns at once."""
ReceiveAbsence: TypeAlias = Callable[[str, int], None]
"""Takes the agent's id and the number of a task without a listener."""


class HandOver(msgspec.Struct, frozen=True):
    """A task on its way to an agent; `number` identifies it."""

    name: str
    agent_id: str
    number: int
    body: bytes


class AgentChannel(Protocol):
    """Hold lists of agents, and commands, tasks and notices to them.

    Any message may be lost, and any user of NATS that may publish there may have sent it. To send raises `LogUnavailable`
    without a connection, and a hold list that is too large for the server raises `RequestRefused`.
    """

    @property
    def connections(self) -> int:
        """The number of connections so far, which grows with each reconnect.

        0: there is no connection now.
        """

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        """Send a hold list to all agent keepers."""

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        """Send a hold list, and return whether an agent keeper listens.

        False comes at once, True after `wait` seconds.
        """

    async def catch_up(self) -> None:
        """Return after the hold lists that the server has now were passed on."""

    def hold_lists(self, receive: ReceiveHoldList) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each hold list on."""

    async def command(self, name: str, agent_id: str, body: bytes) -> None:
        """Send a command to an agent."""

    def commands(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each command to an agent on."""

    async def hand_over(self, tasks: Sequence[HandOver]) -> Sequence[HandOver]:
        """Send tasks to agents, and return the tasks that are too large for the server."""

    def tasks(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each task for an agent on."""

    async def send_ends(self, name: str, agent_id: str, body: bytes) -> None:
        """Send an agent a notice of executions that are over."""

    def ends(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each notice to an agent on."""

    def absences(self, receive: ReceiveAbsence) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on each task of `hand_over` that reached no process."""

    async def call_roll(self) -> None:
        """Ask all agents to send their hold lists at once."""

    def roll_calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Call `receive`, within the block, after each request of `call_roll`."""


WEBHOOK_PATH: Final = "Tocsin-Webhook"
"""The header of a queued request with the path of its webhook."""
WEBHOOK_DELIVERY: Final = "Tocsin-Delivery"
"""The header of a queued request with its identity among those of its webhook."""
WEBHOOK_REGISTRATION: Final = "Tocsin-Registration"
"""The header of a queued request with the time at which its job was registered first."""


class WebhookQueue(Protocol):
    """Stores requests to webhooks until the event listener has handled them."""

    async def store(self, durable: str, body: bytes, headers: Mapping[str, str], *, message_id: str) -> None:
        """Store a request for the trigger with a durable, also before that durable exists.

        Requests with one `message_id` are stored once within two minutes.

        Raises:
            RequestRefused: the queue is full.
            LogUnavailable: the server did not answer, or there is no queue.
        """


class Submission(NamedTuple):
    """A message that a user outside published for a stream."""

    subject: str
    """The relative subject under which it is to be stored."""
    body: bytes
    headers: Mapping[str, str]
    """All headers of its publisher, or the headers to store."""
    reply: str = ""
    """Where its publisher expects the answer; empty: it expects none."""


class Refusal(NamedTuple):
    """The answer to a message that no stream has."""

    code: int
    """As in HTTP: from 500 on, the publisher may send the message again."""
    reason: str


Answer: TypeAlias = bytes | Refusal
"""The answer of the stream as it is, also if it refuses the message; or the screener's."""


class ScreeningChannel(Protocol):
    """Submissions of one user, shared by all screeners: each submission reaches one of them.

    A message may be lost before it is stored. Then its publisher gets no answer.
    """

    def submissions(self, receive: Callable[[Submission], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each submission on; at its end, those that have arrived already."""

    async def store(self, submissions: Sequence[Submission]) -> list[Answer]:
        """Store messages in one write, and return the answer to each."""

    async def answer(self, submissions: Sequence[tuple[Submission, Answer]]) -> None:
        """Answer the publishers that expect it.

        The answers are lost if there is no connection.
        """


OpenScreening: TypeAlias = Callable[[str], AbstractAsyncContextManager[ScreeningChannel]]
"""Opens the channel of a user outside."""


class FetchChannel(Protocol):
    """Requests of gateways, the processes of the API, to all matchers, and their answers.

    Any message may be lost. An answer goes to a subject that the gateway's id names, never to a reply subject, which the sender
    of a request could choose. To send raises `LogUnavailable` without a connection, and `RequestRefused` if the message is
    too large for the server.
    """

    async def request(self, body: bytes) -> None:
        """Send a request to all matchers."""

    def requests(self, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each request on."""

    async def answer(self, gateway: str, body: bytes) -> None:
        """Send an answer to a gateway; its id must be one token."""

    def answers(self, gateway: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on each answer to a gateway."""

    async def call_fetches(self) -> None:
        """Ask all gateways to send their waiting fetches again."""

    def calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each such call on."""
