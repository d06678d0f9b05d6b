"""The text of a notification, for e-mails and for chats.

Names, reasons and evidence come from jobs. They may have any character, and must not act on the reader's side.
"""

import re
from collections.abc import Iterator
from typing import Final

from .notification import MEANINGS, Notification
from .text import counted, printable, printable_lines, utc_text

MAX_SUBJECT: Final = 150
"""Characters of a subject."""
MAX_CHAT_LINES: Final = 1_000
"""Characters of the evidence in a chat."""
MAX_CHAT_BODY: Final = 1_800
"""Characters of the body in a chat: Discord refuses more than 2,000 with the subject."""
_CUT: Final = "…"
_MARKUP: Final = str.maketrans({"<": "‹", ">": "›", "@": "(at)", "＠": "(at)", "﹫": "(at)"})
_LAST: Final = {"&": "＆", "]": "］"}
"""The characters that act together with a text after them."""
_ENTITY: Final = re.compile(r"&(?=[#A-Za-z])")


def subject_of(notification: Notification) -> str:
    """Return one line: the job, what happened, and the number of others."""
    return cut(printable(notification.title), MAX_SUBJECT)


def body_of(notification: Notification) -> str:
    """Return the plain text below the subject."""
    return "\n".join(_lines(notification, printable_lines(notification.why)))


def chat_subject_of(notification: Notification) -> str:
    """Return the subject for a chat."""
    return without_markup(subject_of(notification))


def chat_body_of(notification: Notification) -> str:
    """Return the body for a chat: shorter, and without anything that a chat acts on."""
    why = cut(printable_lines(notification.why), MAX_CHAT_LINES)
    *lines, last = _lines(notification, why)
    if notification.url is None:
        lines.append(last)
    text = without_markup("\n".join(lines))
    if notification.url is None:
        return cut(text, MAX_CHAT_BODY)
    return f"{cut(text, max(MAX_CHAT_BODY - len(last) - 1, 1))}\n{last}"


def without_markup(text: str) -> str:
    """Return a text without mentions, tags and links with another text.

    Slack reads `<!channel>`, Discord `@everyone` and `<@&7>`, Teams `<at>`, and Markdown `[text](url)`. The replacements are visible.
    """
    return _ENTITY.sub("＆", text.translate(_MARKUP).replace("](", "] ("))


def value_without_markup(text: str) -> str:
    """Return a text as `without_markup` does, and also without effect beside any other text."""
    text = without_markup(text)
    if text.startswith("("):
        text = f"（{text[1:]}"
    return f"{text[:-1]}{_LAST[text[-1]]}" if text.endswith(tuple(_LAST)) else text


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + _CUT


def _lines(notification: Notification, why: str) -> Iterator[str]:
    """Yield the lines; the last has the URL, if there is one."""
    yield f"{printable(notification.job)}: {MEANINGS[notification.kind]}."
    yield f"Time: {utc_text(notification.at)}"
    if notification.execution_id is not None:
        yield f"Execution: {printable(notification.execution_id)}"
    if notification.reason:
        yield f"Reason: {printable_lines(notification.reason)}"
    if why:
        yield f"\n{why}"
    if notification.others:
        jobs = ", ".join(map(printable, notification.other_jobs))
        yield f"\nThis message stands for {counted(notification.others, 'other notification')} too" + (
            f", of the jobs {jobs}." if jobs else "."
        )
    if notification.url is not None:
        yield f"\n{printable(notification.url)}"
