"""Templates of operators for the text of notifications.

A template is that of `domain.template`, with names of its own. It is rendered with samples when the settings are read, so that an
undefined name stops the start, and loses no notification. A template that cannot be rendered raises TemplateError.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from .notification import MAX_OTHER_JOBS, MAX_REASON, MAX_WHY, MEANINGS, Kind, Notification
from .template import Clean, Form, TemplateError, Verbatim, render
from .text import counted, cut, printable, printable_lines, utc_text

NAMES: Final = frozenset(
    {
        *("at", "channel", "execution_id", "id", "job", "kind", "meaning", "other_jobs", "others"),
        *("reason", "title", "url", "why"),
    }
)
"""The names that a template of a notification may use. Each always has a value, which may be empty."""
MAX_TEMPLATE: Final = 10_000
"""Characters of a template."""
MAX_RENDERED: Final = 50_000
"""Characters of the result, before it is cut."""
_JOINED: Final = re.compile(r"&(?=#?\w*(?:\{[{%#]|\s+\{[{%#]-))")
"""An `&` that makes an HTML entity with the beginning of what `{{ … }}` inserts."""
MAX_BODY: Final = 20_000
"""Characters of the body of an e-mail; a longer one is cut."""


# Names, reasons and evidence come from jobs. They may have any character, and must not act on the reader's side.

MAX_SUBJECT: Final = 150
"""Characters of a subject."""
MAX_CHAT_LINES: Final = 1_000
"""Characters of the evidence in a chat."""
MAX_CHAT_BODY: Final = 1_800
"""Characters of the body in a chat: Discord refuses more than 2,000 with the subject."""
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


def subject_by(template: str, notification: Notification) -> str:
    """Return the line that a template makes."""
    return _subject(_rendered(template, _values(notification)))


def body_by(template: str, notification: Notification) -> str:
    """Return the plain text that a template makes."""
    return _body(_rendered(template, _values(notification)), MAX_BODY)


def chat_subject_by(template: str, notification: Notification) -> str:
    """Return the line that a template makes, for a chat.

    What `{{ … }}` inserts has nothing that a chat acts on, also together with the text before it; the text of the template may.
    """
    return _subject(_for_chat(template, notification))


def chat_body_by(template: str, notification: Notification) -> str:
    """Return the plain text that a template makes, for a chat, as `chat_subject_by` does."""
    return _body(_for_chat(template, notification), MAX_CHAT_BODY)


def json_by(template: str, notification: Notification) -> JsonValue:
    """Return the JSON that a template makes, with the values of `chat_subject_by`.

    Raises:
        TemplateError: it cannot be rendered, or its text is not JSON.
    """
    text = _for_chat(template, notification, "json")
    try:
        document: JsonValue = json.loads(text, parse_constant=_refuse)
        json.dumps(document, allow_nan=False)  # a number such as 1e999 is read as infinity
    except RecursionError:
        raise TemplateError("the template makes JSON with too many levels") from None
    except ValueError as error:
        raise TemplateError(
            f'the template makes no JSON ({error}): write texts in quotes, as in {{"text": "{{{{ title }}}}"}}'
        ) from None
    return document


def check_subject(template: str) -> str:
    """Return a template that makes a subject of any notification.

    Raises:
        TemplateError: it cannot be rendered, or its subject is empty.
    """
    for sample in _samples():
        if not subject_by(template, sample):
            raise TemplateError(f"the template makes an empty subject of a notification of the kind `{sample.kind}`")
    return template


def check(make: Callable[[str, Notification], object], template: str) -> str:
    """Return a template of which `make`, such as `body_by`, makes a part of any notification.

    Raises:
        TemplateError: `make` refuses it.
    """
    for sample in _samples():
        make(template, sample)
    return template


def _rendered(
    template: str, values: Mapping[str, JsonValue], *, form: Form = "text", clean: Clean | None = None
) -> str:
    if len(template) > MAX_TEMPLATE:
        raise TemplateError(f"a template of a notification has at most {MAX_TEMPLATE:,} characters")
    return render(template, values, limit=MAX_RENDERED, form=form, names=NAMES, clean=clean)


def _subject(text: str) -> str:
    return cut(printable(" ".join(text.split())), MAX_SUBJECT)


def _body(text: str, limit: int) -> str:
    return cut(printable_lines(text.strip()), limit)


def _refuse(constant: str) -> JsonValue:
    raise ValueError(f"{constant} is no number of JSON")


def _values(notification: Notification) -> dict[str, JsonValue]:
    return {
        "at": utc_text(notification.at),
        "channel": notification.channel,
        "execution_id": printable(notification.execution_id or ""),
        "id": notification.id,
        "job": printable(notification.job),
        "kind": notification.kind.value,
        "meaning": MEANINGS[notification.kind],
        "other_jobs": [printable(job) for job in notification.other_jobs],
        "others": notification.others,
        "reason": printable_lines(notification.reason),
        "title": printable(notification.title),
        "url": printable(notification.url or ""),
        "why": printable_lines(notification.why),
    }


def _for_chat(template: str, notification: Notification, form: Form = "text") -> str:
    """Render a template, and clean what it inserts after the filters."""
    values = _values(notification)
    values["why"] = cut(str(values["why"]), MAX_CHAT_LINES)
    values["url"] = Verbatim(values["url"])
    return _rendered(_JOINED.sub("＆", template), values, form=form, clean=value_without_markup)


def _samples() -> Iterator[Notification]:
    """Yield notifications of each kind: with the longest parts, and without any."""
    for kind in Kind:
        bare = Notification(id="id", channel="channel", job="job", kind=kind, at=datetime(2026, 1, 1, tzinfo=UTC))
        yield bare
        yield Notification(
            id=bare.id,
            channel=bare.channel,
            job=bare.job,
            kind=kind,
            at=bare.at,
            execution_id="execution",
            reason='"reason"\n'.ljust(MAX_REASON, "-"),
            why='"why"\n'.ljust(MAX_WHY, "-"),
            url="https://tocsin.example.com/executions/execution",
            others=MAX_OTHER_JOBS,
            other_jobs=("job",) * MAX_OTHER_JOBS,
        )
