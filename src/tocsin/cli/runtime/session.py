"""The session of one command: its global options, settings and connections."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from ... import telemetry
from ...bootstrap.operators import connect_api, local_actor, opened_once, operator_of, recorded_history
from ...domain.events import Actor
from ...domain.ledger import JobNotFound
from ...ports import NotAllowed, NotInitialized
from ...services.operations.errors import NotServed
from ...services.operator import Operator
from ...settings import Settings, load, with_options
from ...settings.fields import is_http_url
from ...settings.root import FieldPath
from ..output.format import Output
from .backend import PATIENCE, Backend
from .errors import UsageError, no_such_job
from .event_loop import run

if TYPE_CHECKING:
    from ...adapters.http.client import RemoteAdmin
    from ...bootstrap import Installation

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """One call of the program."""

    backend: Backend = field(default_factory=Backend)
    output: Output = field(default_factory=Output)
    config: Path | None = None
    options: Mapping[FieldPath, object] = field(default_factory=dict)
    """Settings from the command line, by path."""
    log_level: telemetry.Level | None = None
    log_format: telemetry.Format = "auto"
    server: str | None = None
    """The URL of an HTTP API to use instead of NATS."""
    token: str | None = field(default=None, repr=False)
    given: Settings | None = None
    """The settings in the code of an application, in place of those of the environment and `tocsin.yaml`."""

    def settings(self, **more: object) -> Settings:
        """Return the settings of the code, or else of the environment.

        The values of the command line come first. `more` holds this command's own options; `section__field` names a nested setting.
        """
        overrides = {tuple(name.split("__")): value for name, value in more.items() if value is not None}
        options = {**self.options, **overrides}
        return load(self.config, options=options) if self.given is None else with_options(self.given, options)

    def with_given(self, given: Settings | None, target: str) -> Self:
        """Return the session with the settings of an application's code, if it has any."""
        if given is not None and self.config is not None:
            raise UsageError(
                f"--config has no effect: the code of {target} has its settings, `Tocsin(settings=…)`. "
                "Omit --config, or omit `settings`.",
                code="conflicting-options",
            )
        return replace(self, given=given)

    def log(self, usual: telemetry.Level, *, tasks: telemetry.Level | None = None) -> None:
        """Configure logging for a long-running command; `--log-level` overrides both levels."""
        telemetry.configure(self.log_level or usual, self.log_format, tasks=self.log_level or tasks)

    @asynccontextmanager
    async def installation(
        self, settings: Settings | None = None, *, within: float | None = PATIENCE, checked: bool = True
    ) -> "AsyncIterator[Installation]":
        """Connect to the installation.

        Args:
            settings: None: the settings of the session.
            within: seconds to wait for the connection; None: no limit.
            checked: wait for JetStream, and verify that the installation is initialized. A worker may use no JetStream.

        Raises:
            Unreachable: NATS does not answer.
            NotInitialized: the installation is not initialized.
            NotServed: the command line names an HTTP API instead of NATS.
        """
        settings = settings or self.settings()
        if self.server:
            raise NotServed("this command")
        async with self.backend.connect(settings, within=within) as installation:
            if checked and within is None:
                await self.backend.await_log(installation)
            with suppress(NotAllowed):  # without the right to read the key, the first request reports the error
                if checked and not await self.backend.is_set_up(installation, within=within):
                    raise NotInitialized.of(settings.root)
            yield installation

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        """Yield the operator of the installation, through NATS or through its HTTP API."""
        async with self._operator() as operator:
            try:
                yield operator
            except JobNotFound as error:
                raise no_such_job(error.job, [job.name for job in await operator.jobs()]) from None

    def ask(self, work: Callable[[Operator], Awaitable[T]]) -> T:
        """Return the answer of `work` on the operator, with the errors of `operator`."""

        async def answered() -> T:
            async with self.operator() as operator:
                return await work(operator)

        return run(answered())

    def on_installation(self, work: "Callable[[Installation], Awaitable[T]]", *, checked: bool = True) -> T:
        """Return the answer of `work` on the installation, with the errors of `installation`."""

        async def answered() -> T:
            async with self.installation(checked=checked) as installation:
                return await work(installation)

        return run(answered())

    @asynccontextmanager
    async def administration(self) -> "AsyncIterator[RemoteAdmin]":
        """Connect to the HTTP API of `--server` for its tokens and its checks."""
        from ...adapters.http.api_client import open_api  # noqa: PLC0415 - few commands need these
        from ...adapters.http.client import RemoteAdmin  # noqa: PLC0415

        async with open_api(self._server_url(), self.token) as api:
            yield RemoteAdmin(api)

    def _server_url(self) -> str:
        url = self.server or ""
        if not is_http_url(url):
            raise UsageError(
                f"--server is {url!r}: write a URL with its scheme, such as http://127.0.0.1:8062",
                code="invalid-server-url",
            )
        return url

    @asynccontextmanager
    async def _operator(self) -> AsyncIterator[Operator]:
        if self.server:
            async with connect_api(self._server_url(), self.token) as remote:
                yield remote
            return
        async with (
            self.installation() as installation,
            opened_once(partial(recorded_history, installation)) as history,
        ):
            yield operator_of(installation, history, by=actor())


def actor() -> Actor:
    """Return the identity of the user, for the audit trail."""
    return local_actor("cli")
