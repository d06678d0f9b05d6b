"""The process that sends one notification through Apprise.

    python -P apprise_process.py < ORDER

ORDER is a JSON object: `action` (`send`, or `check` to read the URL only), `url`, `title`, `body` and `type`. Standard output
receives one JSON object: `outcome` is `done`, `failed` or `unknown-url`; `status` is the status of an answer that is no success.

This is a process of its own for four reasons. Apprise works in threads, which cannot be ended at a deadline. Its log lines and
those of its HTTP client have URLs with tokens, so this process reads them for a status and drops them. It keeps the whole body of
an answer in memory, so this process has a limit for it. And no process of Tocsin has to load its hundred services.
"""

import contextlib
import json
import logging
import re
import resource
import sys
from typing import Any, Final

MAX_MEMORY: Final = 1 << 29
"""Bytes of address space that the process may have; it dies with more.

Apprise itself takes about two fifths of them for a message, of which a quarter is in memory.
"""
_STATUS: Final = re.compile(r"\berror=([1-5][0-9]{2})\b")


class _Statuses(logging.Handler):
    """Keeps the last status that a log line has, and nothing else of the line."""

    last: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if found := _STATUS.search(record.getMessage()):
            self.last = int(found[1])


def execute(order: dict[str, Any]) -> dict[str, Any]:
    import apprise  # noqa: PLC0415 - `main` redirects output before

    statuses = _Statuses()
    logger = logging.getLogger("apprise")
    logger.handlers, logger.propagate = [statuses], False
    asset = apprise.AppriseAsset(
        storage_mode=apprise.PersistentStoreMode.MEMORY,
        app_id="Tocsin",
        app_desc="Tocsin",
        app_url="",
        async_mode=False,
        http_redirects=False,
        image_url_mask="",
        image_url_logo="",
    )
    services = apprise.Apprise(asset=asset)
    if not services.add(order["url"]) or len(services) != 1:
        return {"outcome": "unknown-url", "status": None}
    if order["action"] == "check":
        return {"outcome": "done", "status": None}
    is_sent = services.notify(
        order["body"], title=order["title"], notify_type=order["type"], body_format=apprise.NotifyFormat.TEXT
    )
    return {"outcome": "done" if is_sent else "failed", "status": statuses.last}


def main() -> None:
    with contextlib.suppress(ValueError, OSError):  # a system without this limit, or with a lower one
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    logging.getLogger().addHandler(logging.NullHandler())
    with contextlib.redirect_stdout(sys.stderr):
        answer = execute(json.load(sys.stdin))
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
