"""The entries of a Celery schedule: their statements, their `crontab(…)` and their queues."""

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple, TypeAlias

from ...domain.definition import is_name
from ...domain.schedule import ScheduleError
from ...domain.schedule.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, Field
from .drafts import Draft
from .python_values import Call, Values, assigned, given_as, is_static, setting_name, shown, source_of
from .schedules import NotExpressible, mask_of, rendered

_SHORT: Final = frozenset({"s", "si"})
_LONG: Final = frozenset({"signature", "Signature", "subtask"})
_NOT_OPTIONS: Final = frozenset({"args", "kwargs", "options", "immutable"})

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Blocks:
    """The module, its classes and its functions, with the names that each binds."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._block_of: dict[int, ast.AST] = {}
        self._outer: dict[ast.AST, ast.AST] = {}
        self._bound: dict[ast.AST, set[str]] = {module: set()}
        self._declared: dict[ast.AST, set[str]] = {module: set()}
        """Names that `global` and `nonlocal` leave to outer blocks."""
        self._visit(module, module)

    def owner(self, name: ast.Name) -> ast.AST:
        """Return the block that binds a name; the module if none does."""
        block = self._block_of[id(name)]
        while block is not self._module and name.id not in self._bound[block] - self._declared[block]:
            block = self._outer[block]
        return block

    def _visit(self, node: ast.AST, block: ast.AST) -> None:
        match node:
            case ast.Name(id=name, ctx=context):
                self._block_of[id(node)] = block
                if isinstance(context, ast.Store):
                    self._bound[block].add(name)
            case ast.arg(arg=name):
                self._bound[block].add(name)
            case ast.alias(name=name, asname=other):
                self._bound[block].add(other or name.partition(".")[0])
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self._declared[block].update(names)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                if not isinstance(node, ast.Lambda):
                    self._bound[block].add(node.name)
                # A function does not see the names of a class around it.
                is_hidden = isinstance(block, ast.ClassDef) and isinstance(node, _Function)
                self._outer[node] = self._outer[block] if is_hidden else block
                self._bound[node], self._declared[node] = set(), set()
                block = node
        for child in ast.iter_child_nodes(node):
            self._visit(child, block)


class Signature(NamedTuple):
    """A task, and what it is called with."""

    task: Any
    """Its name, or the expression that cannot be read."""
    args: Any
    kwargs: Any
    options: dict[str, Any]


def signature_of(value: Any, values: Values) -> Signature:  # noqa: ANN401 - a value of the file
    """Return the task of a signature; another value is its own task."""
    options = dict[str, Any]()
    while isinstance(value, Call) and value.name == "set" and isinstance(value.node.func, ast.Attribute):
        options = {**value.keywords, **options}  # `task.s(…).set(queue="mail")`
        value = values.of(value.node.func.value)
    if isinstance(value, Call) and value.name in _SHORT:
        return Signature(value.full.rpartition(".")[0] or value, [*value.args], dict(value.keywords), options)
    if isinstance(value, Call) and value.name in _LONG:
        given = [*value.args]
        is_named = bool(given) and isinstance(given[0], str)
        task = given.pop(0) if is_named else value.full.rpartition(".")[0] or value
        named = dict(zip(("args", "kwargs", "options"), given, strict=False)) | dict(value.keywords)
        inner = named.get("options")
        own = {name: each for name, each in named.items() if name not in _NOT_OPTIONS}
        more = inner if isinstance(inner, dict) else {} if inner is None else {"options": inner}
        return Signature(task, named.get("args") or [], named.get("kwargs") or {}, {**more, **own, **options})
    return Signature(value, [], {}, options)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a schedule."""

    name: str
    value: Any
    line: int
    block: str
    """The statement that decides whether the entry exists; empty: it always does."""
    is_named: bool = True

    @property
    def key(self) -> str:
        """The name in Celery's schedule; a nameless entry has its task and arguments instead."""
        return self.name if self.is_named else repr([self.value.get(part) for part in ("task", "args", "kwargs")])


class Entries:
    """The entries of a file, in order."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.changes: dict[int, int] = {}
        """The line that changes or removes an entry, by the number of the entry."""
        self._numbers: dict[str, list[int]] = {}
        self._read: set[tuple[str, int]] = set()
        self._open: list[int] = []
        """The numbers of the entries that no change of a computed name has met."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Add an entry, unless a schedule that has two names has it already."""
        read = entry.key, id(entry.value)
        if read not in self._read:
            self._read.add(read)
            self._numbers.setdefault(entry.key, []).append(len(self._entries))
            self._open.append(len(self._entries))
            self._entries.append(entry)

    def note_change(self, name: object, line: int, *, since: int = 0) -> None:
        """Note a change of the entries of a name that are known by now.

        All of them from the number `since` on are changed if the name is computed. An entry is visited once, however many statements
        change it: the first statement counts.
        """
        if isinstance(name, str):
            numbers = self._numbers.pop(name, [])
        else:
            first = bisect_left(self._open, since)
            numbers = self._open[first:]
            del self._open[first:]
        for number in numbers:
            self.changes.setdefault(number, line)


_ROUTES: Final = frozenset({"task_routes", "CELERY_TASK_ROUTES", "CELERY_ROUTES"})
_DEFAULTS: Final = frozenset({"task_default_queue", "CELERY_TASK_DEFAULT_QUEUE", "CELERY_DEFAULT_QUEUE"})
_CHANGES: Final = frozenset({"update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert"})


class Routes:
    """The queue of each task, by the settings of a file."""

    def __init__(self, module: ast.Module, values: Values) -> None:
        self.unread: list[tuple[int, str]] = []
        """The settings that are not followed, each with its line and its source."""
        self._routers: list[dict[str, Any]] = []
        routes = [*_settings(module, _ROUTES)]
        # Which of several settings counts is unknown, and a target sets a part only.
        is_whole = len(routes) == 1 and not isinstance(getattr(routes[0], "ctx", None), ast.Store)
        if not is_whole or not self._read(values.of(routes[0])):
            self.unread += [(node.lineno, source_of(node)) for node in routes]
        defaults = [*_settings(module, _DEFAULTS)]
        default = values.of(defaults[0]) if len(defaults) == 1 else None
        self._default = default if isinstance(default, str) else None
        if self._default is None:
            self.unread += [(node.lineno, source_of(node)) for node in defaults]

    def _read(self, routes: Any) -> bool:  # noqa: ANN401 - a value of the file
        """Read a router, or a list of routers; return whether all can be read."""
        parts = routes if isinstance(routes, list) else [routes]
        routers = [router for part in parts if (router := _router(part)) is not None]
        is_read = len(routers) == len(parts)
        self._routers = routers if is_read else []
        return is_read

    def _route(self, task: str) -> Any:  # noqa: ANN401 - a value of the file
        """Return the route of the first router that has one; names go before patterns."""
        for router in self._routers:
            if task in router:
                return router[task]
            for pattern, route in router.items():
                if "*" in pattern and _begins_as(task, pattern):
                    return route
        return None

    def set_queue(self, draft: Draft, task: str) -> None:
        """Set the queue of a job with an entry that names none."""
        route = self._route(task)
        if isinstance(route, dict):
            for name in route.keys() - {"queue"}:
                said = f"`{name}` of the task's route is {shown(route[name])}, which has no equivalent"
                draft.add("field-not-supported", said)
        queue = route.get("queue") if isinstance(route, dict) else route
        queue = self._default if queue is None else queue
        if isinstance(queue, str) and is_name(queue):
            draft.fields["queue"] = queue
        elif queue is not None:
            code = "field-not-supported" if is_static(queue) else "computed-at-run-time"
            draft.add(code, f"the queue of the task's route is {shown(queue)}: write `queue`")


def _router(part: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a value of the file
    """Return the routes of a mapping, pairs, or a pair; None for others."""
    match part:
        case dict():
            return {str(name): route for name, route in part.items()}
        case [str() as name, route]:
            return {name: route}
        case [*pairs]:
            routers = [_router(pair) for pair in pairs if isinstance(pair, list)]
            if len(routers) == len(pairs) and all(router is not None for router in routers):
                return {name: route for router in routers if router for name, route in router.items()}
    return None


def _begins_as(task: str, pattern: str) -> bool:
    """Return whether a pattern of Celery matches: at the beginning, `*` for one character or more."""
    first, *rest = pattern.split("*")
    if not task.startswith(first):
        return False
    at = len(first)
    for part in rest:
        found = task.find(part, at + 1)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _settings(module: ast.Module, names: frozenset[str]) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        yield from given_as(node, names)
        for target, value in assigned(node):
            if setting_name(target) in names:
                yield value
            elif isinstance(target, ast.Subscript) and setting_name(target.value) in names:
                yield target
        match node:
            case ast.AugAssign(target=target) if setting_name(target) in names:
                yield target
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if (
                method in _CHANGES and setting_name(owner) in names
            ):
                yield node


_ARGUMENTS: Final = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_KINDS: Final = {
    "minute": replace(MINUTE, cyclic=True),
    "hour": replace(HOUR, cyclic=True),
    "day_of_month": replace(DAY_OF_MONTH, cyclic=True),
    "month_of_year": replace(MONTH, names={}),
    "day_of_week": replace(DAY_OF_WEEK, high=6),
}
"""In the order of a cron expression."""
_ITEM: Final = re.compile(r"(?:\*|\w+-\w+)(?:/[0-9]{1,4})?|\w+")
_WEEKDAY: Final = re.compile(r"([A-Za-z]{3})[A-Za-z]+")


def set_crontab(draft: Draft, call: Call) -> bool:
    """Set the schedule of a draft from a `crontab(…)`; return whether it has one.

    A time must match all five fields, the two day fields included. A range may run over the end of its field.
    """
    arguments: tuple[Any, ...] = call.args
    names: tuple[str, ...] = _ARGUMENTS
    if call.name == "from_string" and len(call.args) == 1 and isinstance(call.args[0], str):
        arguments, names = tuple(call.args[0].split()), tuple(_KINDS)  # in the order of a cron expression
        if len(arguments) != len(names):
            draft.add("schedule-not-expressible", f"{shown(call)} has no five fields: write a schedule of your own")
            return False
    given = {**dict(zip(names, arguments, strict=False)), **call.keywords}
    for name in (name for name in given if name not in _ARGUMENTS):
        draft.add("field-not-supported", f"`{name[:100]}` of {shown(call)} has no equivalent")
    try:
        masks = [_mask(kind, name, given.get(name, "*")) for name, kind in _KINDS.items()]
        draft.fields["schedule"] = rendered(masks, (False, False), both=True, written=_written(given))
    except _Computed as error:
        draft.add("computed-at-run-time", f"{error}: write `schedule` by hand")
        return False
    except (ValueError, ScheduleError, NotExpressible) as error:
        reason = error.problem if isinstance(error, ScheduleError) else error
        draft.add("schedule-not-expressible", f"{shown(call)}: {reason}; write a schedule of your own")
        return False
    return True


class _Computed(Exception):
    """A field is computed at run time."""


def _written(given: dict[str, Any]) -> str:
    """Return the fields as a cron expression, if each is a text or a number."""
    parts = [str(given.get(name, "*")).replace(" ", "") for name in _KINDS]
    is_plain = all(
        isinstance(given.get(name, "*"), str | int) and part for name, part in zip(_KINDS, parts, strict=True)
    )
    return " ".join(parts) if is_plain else ""


def _mask(kind: Field, name: str, value: Any) -> int:  # noqa: ANN401 - an argument
    match value:
        case int() | str() if not isinstance(value, bool):
            items = [item.strip() for item in str(value).split(",")]
            if wrong := [item for item in items if not _ITEM.fullmatch(item)]:
                raise ValueError(f"`{name}` has {wrong[0][:40]!r}, which Celery cannot read")
            return mask_of(kind, _WEEKDAY.sub(r"\1", ",".join(items)))
        case [_, *_]:
            return reduce(or_, (_mask(kind, name, each) for each in value))
        case []:
            raise ValueError(f"`{name}` is an empty list")
        case _:
            raise _Computed(f"`{name}` is {shown(value)}")
