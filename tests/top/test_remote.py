"""`tocsin --server URL top`: the same screen through the HTTP API."""

from pathlib import Path

from tests.cli.test_remote import prepare
from tests.http.served import served
from tests.top.given import screen_for
from tocsin.cli.runtime.session import Session


async def test_screen_works_through_the_api(tmp_path: Path) -> None:
    with served(tmp_path, prepare) as url:
        async with screen_for(Session(server=url)) as screen:
            await screen.until("tocsin · no problems", "Jobs 1", "Queues 1", "Agents 1", "Running 0")
            await screen.press("2")
            await screen.until("nightly")
            await screen.press("p")
            await screen.until("pause job nightly?")
            await screen.press("enter")
            await screen.until("paused nightly", "nightly  paused")


async def test_viewer_sees_the_refusal(tmp_path: Path) -> None:
    (tmp_path / "guarded").touch()
    with served(tmp_path, prepare) as url:
        token = (tmp_path / "token").read_text()
        async with screen_for(Session(server=url, token=token)) as screen:
            await screen.press("2")
            await screen.until("nightly", "Jobs 1")
            await screen.press("p")
            await screen.until("pause job nightly?")
            await screen.press("enter")
            text = await screen.until("not-permitted: ", "scheduler-viewer")
            assert token not in text


async def test_missing_token_is_shown(tmp_path: Path) -> None:
    (tmp_path / "guarded").touch()
    with served(tmp_path, prepare) as url:
        async with screen_for(Session(server=url)) as screen:
            await screen.until("not-permitted: a bearer token is required")
