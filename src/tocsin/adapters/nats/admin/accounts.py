"""Accounts of nats-server with their users, in the language of its configuration.

The first account has the streams and the users who may use them. Each account outside imports subjects from it, and sees
nothing else: no stream, no reply of the server to others. A request from outside reaches the first account with a reply
subject of the server's own, so that no reply can be stored as a message.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from ....subjects import ANY
from .permissions import Outside, Permissions

LONGEST_PULL: Final = "10m"
"""The server forgets where replies to a pull go after this time without a reply. Pulls may wait half as long."""


def server_accounts(account: str, users: Mapping[str, Permissions]) -> str:
    """Return the accounts of an installation with their users.

    `account` is the name of the first account, and begins the names of the others. Passwords come from the server's
    environment.
    """
    members: dict[Outside | None, dict[str, Permissions]] = defaultdict(dict)
    for name, permissions in users.items():
        members[permissions.outside][name] = permissions
    inside = members.pop(None, {})
    lines = ["# Made by `tocsin permissions`.", "accounts {", f"  {account} {{", "    jetstream: enabled"]
    outsides = list(filter(None, members))
    lines += _mappings(pair for outside in outsides for pair in outside.diverted)
    lines += _section("exports", _exports(account, outsides))
    lines += [*_users(account, inside), "  }"]
    for outside, those in members.items():
        if outside is not None:
            lines += [f"  {account}_{outside.suffix} {{", *_mappings(outside.withheld)]
            lines += _section("imports", _imports(account, outside))
            lines += [*_users(account, those), "  }"]
    return "\n".join([*lines, "}", ""])


def password_variable(account: str, user: str) -> str:
    """Return the environment variable of a user's password."""
    return f"{account}_{user}_PASSWORD".upper().replace("-", "_")


def _exports(account: str, outside: Sequence[Outside]) -> Iterator[str]:
    stream = f', response_type: stream, response_threshold: "{LONGEST_PULL}"'
    importers: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for of in outside:
        exported = (
            *(("service", subject, "") for subject in of.requests),
            *(("service", subject, stream) for subject in of.pulls),
            *(("stream", subject, "") for subject in of.hears),
        )
        for kind, subject, options in exported:
            importers[kind, of.exported(subject), options].append(f"{account}_{of.suffix}")
    for (kind, subject, options), accounts in importers.items():
        yield f"{{ {kind}: {json.dumps(subject)}, accounts: [ {', '.join(accounts)} ]{options} }}"


def _imports(account: str, outside: Outside) -> Iterator[str]:
    for kind, subjects in (("service", (*outside.requests, *outside.pulls)), ("stream", outside.hears)):
        for subject in subjects:
            exported = outside.exported(subject)
            renamed = "" if exported == subject else f", to: {json.dumps(_numbered(subject))}"
            yield f"{{ {kind}: {{ account: {account}, subject: {json.dumps(exported)} }}{renamed} }}"


def _numbered(subject: str) -> str:
    """Return a subject with `$1`, `$2` for its wildcards, as a mapping needs it."""
    number = count(1)
    return ".".join(f"${next(number)}" if part == ANY else part for part in subject.split("."))


def _mappings(pairs: Iterable[tuple[str, str]]) -> list[str]:
    lines = [f"      {json.dumps(subject)}: {json.dumps(_numbered(target))}" for subject, target in pairs]
    return ["    mappings: {", *lines, "    }"] if lines else []


def _section(name: str, entries: Iterator[str]) -> list[str]:
    listed = [f"      {entry}" for entry in entries]
    return [f"    {name}: [", *listed, "    ]"] if listed else []


def _users(account: str, users: Mapping[str, Permissions]) -> Iterator[str]:
    yield "    users: ["
    for name, permissions in users.items():
        yield f"      {{ user: {name}, password: ${password_variable(account, name)}, permissions: {{"
        for verb, rule in permissions.as_server_config().items():
            if not isinstance(rule, dict):
                yield f"          {verb}: {json.dumps(rule)}"
                continue
            yield f"          {verb}: {{"
            for effect, patterns in rule.items():
                yield f"            {effect}: ["
                yield from (f"              {json.dumps(subject)}" for subject in patterns)
                yield "            ]"
            yield "          }"
        yield "        } }"
    yield "    ]"
