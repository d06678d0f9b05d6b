"""The application of `tocsin dev`, in its newest valid version."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...domain.errors import TocsinError
from ...ports import LogUnavailable
from ..jobs.plan_page import as_json, summary
from ..runtime.error_report import failure_of
from .app_version import AppRefused, AppVersion, Document, import_app
from .source_files import SourceFiles, relative

if TYPE_CHECKING:
    from ...services.jobs import Plan
    from ...services.operator import Operator
    from ...settings import Settings
    from ..runtime.session import Session

Register: TypeAlias = Callable[[AppVersion], "Awaitable[Plan]"]

MAX_DRAINING: Final = 3
"""Old versions that may finish their tasks at the same time; the next version waits until one has ended."""
RETRY_INTERVAL_S: Final = 1.0
"""Seconds before jobs are registered again while NATS has no leader, and before a process that ended is started again."""
MAX_NAMES: Final = 3
"""Changed files that a line names."""


class AppRunner:
    """Runs an application, and its newer versions when its files change."""

    def __init__(
        self, target: str, secrets: Collection[str], say: Callable[..., None], *, is_json: bool, reload: bool
    ) -> None:
        """Name the application as MODULE:ATTRIBUTE; nothing is imported yet.

        `secrets`: for references in inputs, beside the secrets in the code. `say`: prints a line.
        """
        self._target = target
        self._secrets = list(secrets)
        self._say = say
        self._is_json = is_json
        self._reload = reload
        self._files = SourceFiles()
        self._current: AppVersion | None = None
        self._draining: set[asyncio.Task[None]] = set()
        self._register: Register | None = None
        self._permission: Document = {}

    @asynccontextmanager
    async def imported(self) -> AsyncIterator[None]:
        """Import the application, or raise `AppRefused`; no process of the application outlives the block."""
        self._files.begin()
        self._current = await self._imported()
        try:
            yield
        finally:
            if self._current is not None:
                await self._current.kill()

    async def connect(self, session: "Session", operator: "Operator", settings: "Settings") -> None:
        """Register the jobs of the application in an installation."""
        self._permission = permission(session, settings, self._secrets)
        self._register = partial(_register, operator, settings)
        if self._current is not None:
            plan = await self._register(self._current)
            self._say("app", f"{self._target}: {summary(plan).plain}", owner=self._current.owner, **as_json(plan))

    async def run(self) -> None:
        """Run the application, and each newer version, until cancelled."""
        if self._current is not None:
            self._current.permit(self._permission)
        try:
            while True:
                waits = [self._changed()] if self._current is None else [self._changed(), self._end_of(self._current)]
                changes = await _first_of([asyncio.create_task(each) for each in waits])
                if (newer := await self._registered(changes)) is not None:
                    self._drain()
                    self._current = newer
                    newer.permit(self._permission)
        finally:
            self._drain()
            if self._draining:
                await asyncio.wait(self._draining)

    async def _changed(self) -> list[Path]:
        if self._reload:
            try:
                return await self._files.changed()
            except OSError as error:
                self._say("reload", f"files are not watched: {error}. Restart `tocsin dev` after a change.")
                self._reload = False
        await asyncio.Event().wait()
        return []

    async def _end_of(self, version: AppVersion) -> list[Path]:
        """Wait until a process has ended, and report that; no file has changed."""
        code = await version.process.wait()
        self._current = None
        await version.kill()  # closes the connection to it
        text = f"the process of {self._target} ended with {code}, and is started again"
        self._say("app", text, exit_code=code)
        await asyncio.sleep(RETRY_INTERVAL_S)
        return []

    async def _registered(self, changes: list[Path]) -> AppVersion | None:
        """Import the application and register its jobs; None: it is wrong or has changed."""
        while len(self._draining) >= MAX_DRAINING:
            await asyncio.wait(self._draining, return_when=asyncio.FIRST_COMPLETED)
        version = None
        try:
            version = await self._imported_unless_changed()
            if version is None:
                return None
            plan = await self._patiently_registered(version)
        except BaseException as error:
            if version is not None:
                await version.kill()
            if not isinstance(error, TocsinError):
                raise
            self._refuse(error)
            return None
        names = [relative(path) for path in changes]
        shown = ", ".join(names[:MAX_NAMES]) + (" …" if len(names) > MAX_NAMES else "")
        self._say("reload", f"{shown or self._target}: {summary(plan).plain}", files=names, **as_json(plan))
        return version

    async def _imported_unless_changed(self) -> AppVersion | None:
        self._files.begin()
        first = await _first_of([asyncio.create_task(self._imported()), asyncio.create_task(self._changed())])
        return first if isinstance(first, AppVersion) else None

    async def _imported(self) -> AppVersion:
        try:
            version = await import_app(self._target, is_json=self._is_json)
        except AppRefused as error:
            self._files.add(error.folders)
            raise
        self._files.add(version.folders)
        return version

    async def _patiently_registered(self, version: AppVersion) -> "Plan":
        if self._register is None:
            raise RuntimeError("the application is not connected")
        while True:
            try:
                return await self._register(version)
            except LogUnavailable:
                await asyncio.sleep(RETRY_INTERVAL_S)

    def _refuse(self, error: TocsinError) -> None:
        failure = failure_of(error)
        place = {"file": error.file, "line": error.line} if isinstance(error, AppRefused) else {}
        rest = "No version runs" if self._current is None else "The version before keeps running"
        remedy = "save a file" if self._reload else "restart `tocsin dev`"
        message = failure.message if failure.message.endswith((".", "!", "?")) else f"{failure.message}."
        self._say("error", f"{message} {rest}; {remedy} to try again.", code=failure.error_code, **place)

    def _drain(self) -> None:
        if self._current is not None:
            draining = asyncio.create_task(self._current.drain())
            self._draining.add(draining)
            draining.add_done_callback(self._draining.discard)


async def _register(operator: "Operator", settings: "Settings", version: AppVersion) -> "Plan":
    from ...app.registration import plan_registration  # noqa: PLC0415 - the help needs no application

    plan = await plan_registration(operator, version.definitions, version.owner, settings, prune=True)
    await operator.carry_out(plan)
    return plan


def permission(session: "Session", settings: "Settings", secrets: list[str]) -> Document:
    """Return the message to a version that may take tasks."""
    options = {**session.options, ("nats", "url"): settings.nats.url, ("data_dir",): settings.data_dir}
    return {
        "environment": {"TOCSIN_NATS_URL": settings.nats.url, "TOCSIN_DATA_DIR": str(settings.data_dir)},
        "config": None if session.config is None else str(session.config),
        "options": [[list(path), str(value)] for path, value in options.items() if value is not None],
        "secrets": secrets,
        "format": session.output.format,
        "log_level": session.log_level,
        "log_format": session.log_format,
    }


async def _first_of(works: list["asyncio.Task[Any]"]) -> Any:  # noqa: ANN401 - the result of any
    try:
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        return next(work for work in works if work in done).result()
    finally:
        for work in works:
            work.cancel()
        await asyncio.wait(works)
