"""`tocsin tokens`: tokens for the HTTP API of an installation without an identity provider."""

from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from ...adapters.http.auth.tokens import Token, Tokens
from ...adapters.http.client import RemoteAdmin
from ...domain.access import NO_TASKS, WORKER_QUEUE, Binding, Role
from ...domain.namespaces import is_within
from ...ports import EventLog
from ...services.namespaces import Namespaces
from ..input.values import length
from ..output.format import local
from ..output.tables import print_table
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run
from ..runtime.session import Session, actor

T = TypeVar("T")


def create(
    session: Session,
    identity: Annotated[
        str, typer.Argument(metavar="IDENTITY", help="Identity recorded in events when this token is used.")
    ],
    role: Annotated[list[Role], typer.Option(help=f"What the token may do; repeatable: {', '.join(Role)}.")],
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Lifetime, such as `90d`; default: no end.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A queue from which a `scheduler-worker` may fetch tasks; repeatable."),
    ] = None,
    function: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="A function whose tasks it may fetch, such as `mail/*`; repeatable. Default: all functions of its queues.",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A namespace to which the token is bound; repeatable. Default: the whole installation.",
        ),
    ] = None,
) -> None:
    """Create a token and print it once; only its hash is stored.

    Example: `tocsin tokens create ci --role scheduler-operator --expires 90d`

    Example: `tocsin tokens create ci --role scheduler-author --namespace payments`

    Example: `tocsin tokens create mailer --role scheduler-worker --queue mail --function 'mail/*'`
    """
    lifetime = None if expires is None else _lifetime(expires)
    binding = _binding(role, queue or [], function or [])
    namespaces = namespace or None
    _require_within(binding, namespaces)
    token, stored = _ask(
        session,
        lambda tokens: tokens.create(
            identity, role, binding=binding, namespaces=namespaces, lifetime=lifetime, by=actor()
        ),
        namespaces or (),
    )
    session.output.answer(
        {**_as_json(stored), "token": token},
        lambda: [
            Text(token, style="bold"),
            Text("It is not shown again. `tocsin tokens list` shows its id.", style="dim"),
        ],
    )


def list_tokens(session: Session) -> None:
    """List the tokens without their secrets.

    Example: `tocsin tokens list`
    """
    stored = _ask(session, lambda tokens: tokens.list())
    print_table(
        session.output,
        [_as_json(token) for token in stored],
        ("ID", "IDENTITY", "ROLES", "CREATED", "EXPIRES"),
        map(_row, stored),
        empty="no tokens: the API requires none and listens on the loopback only, unless `auth` is set",
        least=("CREATED", "ROLES", "EXPIRES"),
    )


def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `tokens list` shows.")],
) -> None:
    """Revoke a token; every API process rejects it within seconds.

    Example: `tocsin tokens revoke ID`
    """
    if not _ask(session, lambda tokens: tokens.revoke(token_id)):
        raise UsageError(
            f"Token {token_id!r} does not exist. Run `tocsin tokens list` to see the ids.",
            Exit.NOT_FOUND,
            code="token-not-found",
        )
    session.output.answer({"id": token_id, "action": "revoked"}, lambda: [Text(f"revoked {token_id}", style="yellow")])


def _ask(session: Session, work: Callable[[Tokens | RemoteAdmin], Awaitable[T]], namespaces: Collection[str] = ()) -> T:
    """Return the answer of `work` on the tokens, through NATS or through the HTTP API."""

    async def answered() -> T:
        if session.server:
            async with session.administration() as remote:
                return await work(remote)
        async with session.installation() as installation:
            await _require_declared(installation.log, namespaces)
            return await work(Tokens(installation.projections, installation.clock))

    return run(answered())


def _binding(roles: list[Role], queues: list[str], functions: list[str]) -> Binding:
    if Role.WORKER not in roles:
        if queues or functions:
            option = "--queue" if queues else "--function"
            raise UsageError(
                f"{option} limits the role {Role.WORKER}, which the token does not have. Add --role {Role.WORKER}.",
                code="role-not-bound",
            )
        return NO_TASKS
    if not queues:
        raise UsageError(
            f"A token with the role {Role.WORKER} names no queue. Add --queue NAME for each queue that it serves.",
            code="role-not-bound",
        )
    for name in queues:
        if not WORKER_QUEUE.fullmatch(name):
            raise UsageError(
                f"--queue is {name!r}: a queue for workers over HTTP has lower-case letters, digits, `-` and `.`, "
                "and begins with a letter or a digit.",
                code="invalid-queue",
            )
    if "" in functions:
        raise UsageError(
            "--function is empty. Write the name of a function, or a pattern such as mail/*.", code="invalid-function"
        )
    return Binding(tuple(dict.fromkeys(queues)), tuple(dict.fromkeys(functions)) or ("*",))


def _require_within(binding: Binding, namespaces: list[str] | None) -> None:
    if namespaces is None:
        return
    for queue in binding.queues:
        if not is_within(queue, namespaces):
            raise UsageError(
                f"--queue is {queue!r}, which is outside the namespaces of the token. Name a queue such as "
                f"{namespaces[0]}.default.",
                code="outside-namespace",
            )


async def _require_declared(log: EventLog, namespaces: Collection[str]) -> None:
    declared = (await Namespaces(log).newest()).names if namespaces else frozenset()
    for name in namespaces:
        if name not in declared:
            raise UsageError(
                f"--namespace is {name!r}, which is not declared. Declare it with `tocsin namespaces apply`.",
                code="namespace-not-declared",
            )


def _lifetime(written: str) -> timedelta:
    lifetime = length(written, "--expires")
    if lifetime <= timedelta(0):
        raise UsageError(
            f"--expires is {written!r}: the lifetime must be more than 0 seconds. Write a duration such as 90d.",
            code="duration-out-of-range",
        )
    return lifetime


def _as_json(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "identity": token.identity,
        "roles": sorted(token.roles),
        **({"queues": list(token.queues), "functions": list(token.functions)} if Role.WORKER in token.roles else {}),
        **({} if token.namespaces is None else {"namespaces": list(token.namespaces)}),
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
    }


def _row(token: Token) -> tuple[object, ...]:
    expired = " (expired)" if token.is_expired(datetime.now(UTC)) else ""
    expires = Text("never" if token.expires_at is None else f"{local(token.expires_at)}{expired}")
    bound = f" ({', '.join(token.queues)}: {', '.join(token.functions)})" if Role.WORKER in token.roles else ""
    of = "" if token.namespaces is None else f" of {', '.join(token.namespaces)}"
    roles = Text(f"{', '.join(sorted(token.roles))}{of}{bound}")
    return token.id, Text(token.identity, style="bold"), roles, token.created_at, expires
