"""Jobs of a Celery `beat_schedule`, read from the syntax tree of a Python file.

Beat sends a task at each instant, also while an earlier run is active, and sends a run that it missed once when it starts.
"""

import ast
import builtins
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from ...domain.definition import is_name, shorten
from .celery_entries import Blocks, Entries, Entry, Routes, set_crontab, signature_of
from .drafts import UNLIMITED, Draft, Draftings, function_name, literal
from .python_values import (
    Call,
    Unknown,
    Values,
    assigned,
    constant_keys,
    dotted,
    given_as,
    is_static,
    parse,
    setting_name,
    shown,
    source_of,
    too_deep,
)
from .schedules import Zone, set_interval, set_timezone
from .unfollowed_calls import report_unfollowed

MAX_ENTRIES: Final = 10_000
_SCHEDULES: Final = frozenset({"beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE"})
_PERIODIC: Final = frozenset({"periodic_task", "PeriodicTask"})
_ZONES: Final = frozenset({"timezone", "CELERY_TIMEZONE"})
_ENTRY: Final = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
_HIGHEST_PRIORITY: Final = 100
_REMOVING: Final = frozenset({"pop", "popitem", "clear"})
_CHANGING: Final = _REMOVING | {"update", "setdefault"}
_Name: TypeAlias = tuple[ast.AST, str]


class _Reader:
    def __init__(self, text: str) -> None:
        self.module = parse(text)
        self.values = Values.in_module(self.module)
        self.blocks = Blocks(self.module)
        self.names = _other_names(self.module, self.values, self.blocks)
        self.helpers = {
            node.name
            for node in ast.walk(self.module)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self._adds_arguments(node)
        }
        """The functions that add entries from their arguments."""
        self.entries = Entries()
        self.unread: list[tuple[int, str]] = []
        self.zones: list[Any] = []
        self._parts_read: set[int] = set()
        self._begun: dict[tuple[ast.AST | None, str], int] = {}
        """The number of entries before the first assignment to each name of a whole schedule."""
        self.elsewhere: list[tuple[int, str]] = []
        """Settings that come from outside this file."""
        self._visit(self.module, "")
        self._report_rest()

    def _visit(self, node: ast.AST, block: str) -> None:
        for target, value in assigned(node):
            self._assigned(target, value, block)
        match node:
            case ast.NamedExpr(target=target, value=value):
                self._assigned(target, value, block)
            case ast.AugAssign(target=target, value=value) if self._is_schedule(target):
                self._add_all_of(value, block)
            case ast.AugAssign() | ast.Delete():
                for changed in node.targets if isinstance(node, ast.Delete) else [node.target]:
                    self._change(changed, node.lineno)
            case ast.Dict():
                self._add_settings(node, block)
            case ast.Call():
                self._called(node, block)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._defined(node)
        for child in ast.iter_child_nodes(node):
            inside = type(node).__name__.lower() if isinstance(node, ast.If | ast.For | ast.While) else block
            self._visit(child, inside)

    def _updated(self, node: ast.Call) -> None:
        """Read the settings that `conf.update` takes."""
        settings = self.values.of(node.args[0])
        is_conf = isinstance(node.func, ast.Attribute) and setting_name(node.func.value) == "conf"
        if is_conf and not isinstance(settings, dict):
            self.elsewhere.append((node.lineno, shown(settings)))
        self.zones += [settings[zone] for zone in _ZONES if isinstance(settings, dict) and zone in settings]

    def _adds_arguments(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Subscript(value=schedule, slice=key)], value=value):
                    parts = [key, value]
                case ast.Assign(targets=[schedule], value=value) | ast.AugAssign(target=schedule, value=value):
                    parts = [value]
                case ast.Call(func=ast.Attribute(value=schedule, attr=method)):
                    parts = [*node.args, *(each.value for each in node.keywords)]
                    if method == "add_periodic_task":
                        schedule = ast.Name("beat_schedule")
                case _:
                    continue
            names = {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)}
            if self._is_schedule(schedule) and names & arguments:
                return True
        return False

    def _assigned(self, target: ast.expr, value: ast.expr, block: str) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            if len(values) == len(target.elts) and not any(isinstance(each, ast.Starred) for each in target.elts):
                for each, part in zip(target.elts, values, strict=True):
                    self._assigned(each, part, block)
            elif any(map(self._is_schedule, target.elts)):
                self.unread.append((value.lineno, shown(self.values.of(value))))
        elif self._is_schedule(target):
            owner = self.blocks.owner(target) if isinstance(target, ast.Name) else None
            before = self._begun.setdefault((owner, ast.unparse(target)), len(self.entries))
            self.entries.note_change(None, value.lineno, since=before)
            self._add_all_of(value, block)
        elif setting_name(target) in _ZONES:
            self.zones.append(self.values.of(value))
        elif isinstance(target, ast.Subscript) and self._is_schedule(target.value):
            name = self.values.of(target.slice)
            self._add(name, self.values.of(value), value.lineno, block)
        else:
            self._change(target, value.lineno)

    def _change(self, target: ast.expr, line: int) -> bool:
        """Note the change or the removal of an entry; return whether the target is one."""
        while isinstance(target, ast.Subscript):
            if self._is_schedule(target.value):
                self.entries.note_change(self.values.of(target.slice), line)
                return True
            target = target.value
        return False

    def _add_settings(self, node: ast.Dict, block: str) -> None:
        settings = constant_keys(node)
        for name in sorted(settings.keys() & _SCHEDULES):
            self._add_all_of(settings[name], block)
            self.zones += [self.values.of(settings[zone]) for zone in settings.keys() & _ZONES]

    def _called(self, node: ast.Call, block: str) -> None:
        name, owner = setting_name(node.func), node.func.value if isinstance(node.func, ast.Attribute) else None
        if owner is not None and self._changes(owner, name, node, block):
            return
        if isinstance(node.func, ast.Name) and self._is_helper(node):
            self.unread.append((node.lineno, f"what `{source_of(node)}` adds to the schedule"))
        if name == "add_periodic_task":
            self._add_periodic(node, block)
        elif name == "update" and node.args:
            self._updated(node)
        elif name in {"config_from_object", "config_from_envvar"} and node.args:
            self._configured(node.args[0])
        elif name == "setattr" and len(node.args) == 3 and shown(self.values.of(node.args[1])).strip("`") in _SCHEDULES:  # noqa: PLR2004
            self._add_all_of(node.args[2], block)
        for keyword in node.keywords:
            if keyword.arg in _SCHEDULES:
                self._add_all_of(keyword.value, block)
            elif keyword.arg in _ZONES and name in {"update", "Celery"}:
                self.zones.append(self.values.of(keyword.value))

    def _is_helper(self, call: ast.Call) -> bool:
        given = [*call.args, *(each.value for each in call.keywords if each.arg not in _SCHEDULES)]
        name = getattr(call.func, "id", "")
        return name in self.helpers or (name not in dir(builtins) and any(map(self._is_schedule, given)))

    def _configured(self, given: ast.expr) -> None:
        classes = {each.name for each in ast.walk(self.module) if isinstance(each, ast.ClassDef)}
        if dotted(given) not in classes:
            name = given.value if isinstance(given, ast.Constant) else source_of(given)
            self.elsewhere.append((given.lineno, f"`{str(name)[:100]}`"))

    def _changes(self, owner: ast.expr, method: str, node: ast.Call, block: str) -> bool:
        """Read a call of a schedule's or an entry's method; False: another call."""
        if not self._is_schedule(owner):
            return method in _CHANGING and self._change(owner, node.lineno)
        if method == "update":
            self._add_arguments(node, block)
        elif method == "setdefault" and node.args:
            self._add(self.values.of(node.args[0]), self.values.of(node.args[-1]), node.lineno, block)
        elif method in _REMOVING:
            self.entries.note_change(self.values.of(node.args[0]) if node.args else None, node.lineno)
        return True

    def _defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Report a task that carries its schedule itself, as before Celery 5."""
        made = [*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else ())]
        for each in made:
            if setting_name(each.func if isinstance(each, ast.Call) else each) in _PERIODIC:
                self.unread.append((node.lineno, f"the schedule of `{node.name}` in `{source_of(each)}`"))

    def _report_rest(self) -> None:
        """Report what looks like an entry, and is in no schedule that was read."""
        read = {shown(entry.value.get("task")) for entry in self.entries}
        reported = {line for line, _ in self.unread}
        for node in ast.walk(self.module):
            match node:
                case ast.Dict():
                    parts = constant_keys(node)
                case ast.Call(keywords=keywords):
                    parts = {each.arg: each.value for each in keywords}
                case _:
                    continue
            is_entry = {"task", "schedule"} <= parts.keys() and node.lineno not in reported
            if is_entry and shown(self.values.of(parts["task"])) not in read:
                self.unread.append((node.lineno, f"`{source_of(node)}`, which is in no schedule that can be read,"))

    def _add_periodic(self, node: ast.Call, block: str) -> None:
        call = self.values.of(node)
        arguments: dict[str, Any] = {}
        if isinstance(call, Call):
            positional = zip(("schedule", "sig", "args", "kwargs", "name"), call.args, strict=False)
            arguments = {**dict(positional), **call.keywords}
        task = arguments.pop("sig", None)
        if not arguments or task is None:
            self.unread.append((node.lineno, shown(call)))
            return
        entry: dict[str, Any] = {key: arguments.pop(key) for key in ("schedule", "args", "kwargs") if key in arguments}
        name = arguments.pop("name", None)
        signature = signature_of(task, self.values)
        entry["task"] = signature.task
        if isinstance(entry.get("args"), list | None) and isinstance(signature.args, list):
            entry["args"] = [*signature.args, *(entry.get("args") or [])]
        if isinstance(entry.get("kwargs"), dict | None) and isinstance(signature.kwargs, dict):
            entry["kwargs"] = {**signature.kwargs, **(entry.get("kwargs") or {})}
        entry["options"] = {**signature.options, **arguments}
        fallback = entry["task"] if isinstance(entry["task"], str) else "periodic-task"
        is_named = isinstance(name, str)
        self._add(name if is_named else fallback, entry, node.lineno, block, is_named=is_named)

    def _is_schedule(self, target: ast.expr) -> bool:
        return setting_name(target) in _SCHEDULES or self._is_other_name(target)

    def _is_other_name(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and (self.blocks.owner(node), node.id) in self.names

    def _add_all_of(self, node: ast.expr, block: str) -> None:
        """Add the entries of a mapping, and report entries that cannot be read."""
        if self._is_other_name(node):  # those are read where they are changed
            return
        value, written = self.values.of(node), self.values.expression(node)
        if isinstance(value, dict):
            for name, entry in value.items():
                self._add(name, entry, node.lineno, block)
        elif id(written) not in self._parts_read:  # a mapping may be a part of many
            self._parts_read.add(id(written))
            if not self._add_parts(written, block):
                self.unread.append((node.lineno, shown(value)))

    def _add_parts(self, written: ast.expr, block: str) -> bool:
        """Add what can be read of a mapping; return whether it is one."""
        match written:
            case ast.Dict(keys=keys, values=members):
                for key, member in zip(keys, members, strict=True):
                    if key is None:
                        self._add_all_of(member, block)
                    else:
                        self._add(self.values.of(key), self.values.of(member), member.lineno, block)
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                self._add_all_of(left, block)
                self._add_all_of(right, block)
            case ast.IfExp(body=body, orelse=orelse):
                self._add_all_of(body, "if")
                self._add_all_of(orelse, "if")
            case ast.Call(func=ast.Name(id="dict")) if written.args or written.keywords:
                self._add_arguments(written, block)
            case _:
                return False
        return True

    def _add_arguments(self, call: ast.Call, block: str) -> None:
        """Add the entries of the arguments of `dict` or `update`."""
        for each in (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg is None)):
            self._add_all_of(each, block)
        for keyword in call.keywords:
            if keyword.arg is not None:
                self._add(keyword.arg, self.values.of(keyword.value), keyword.value.lineno, block)

    def _add(self, name: Any, entry: Any, line: int, block: str, *, is_named: bool = True) -> None:  # noqa: ANN401
        if isinstance(name, str) and isinstance(entry, dict) and len(self.entries) < MAX_ENTRIES:
            found = next((each.line for each in entry.values() if isinstance(each, Call | Unknown)), line)
            self.entries.add(Entry(name, entry, max(line, found), block, is_named))
        else:
            self.unread.append((line, f"{shown(name)}: {shown(entry)}"))


def read(text: str, source: str, *, zone: Zone, now: datetime) -> Draftings:
    """Return the jobs of the schedules in a Python file."""
    _ = now  # beat's treatment of clock changes is not specified
    try:
        reader = _Reader(text)
    except RecursionError:
        raise too_deep() from None
    drafted = Draftings(source)
    for line, what in reader.unread:
        said = f"{what[:200]} is computed when the program runs: write its jobs by hand"
        drafted.add("computed-at-run-time", said, line)
    names = [name for name in reader.zones if isinstance(name, str)]
    zone_name = names[-1] if names else zone.name
    read_lines = {line for line, _ in reader.unread}.union(entry.line for entry in reader.entries)
    report_unfollowed(reader.module, drafted, read=(), lines=read_lines)
    for line, name in reader.elsewhere:
        said = f"the settings of {name} are in another place: import that file too, if it has a `beat_schedule`"
        drafted.add("call-not-followed", said, line)
    routes = Routes(reader.module, reader.values)
    drafted.drafts += [_draft(entry, source, zone_name, routes) for entry in reader.entries]
    for line, what in routes.unread if drafted.drafts else ():
        said = f"the routes in `{what}` are not followed: write `queue` of the jobs by hand"
        drafted.add("computed-at-run-time", said, line)
    for number, line in reader.entries.changes.items():
        said = f"line {line} changes or removes the entry: apply the change to the job by hand, or remove the job"
        drafted.drafts[number].add("entry-changed", said)
    if len(set(names)) > 1:
        said = f"the file names the time zones {', '.join(sorted(set(names)))}, and {zone_name} is written: check it in each job"
        drafted.add("timezone-assumed", shorten(said, 400))
    if not drafted.drafts and not drafted.findings:
        drafted.add("document-skipped", "no `beat_schedule` is in this file")
    if drafted.drafts and not names:
        zone.note_in(drafted, "the Celery application, which is UTC unless its `timezone` says otherwise")
    if drafted.drafts:
        said = f"an attempt is stopped after {UNLIMITED} unless the entry has a `time_limit`: set `timeout` of each job"
        drafted.add("no-time-limit", said)
    return drafted


def _draft(entry: Entry, source: str, zone: str, routes: Routes) -> Draft:
    fields = entry.value
    draft = Draft(entry.name, f"{source}:{entry.line}", [f"{entry.name}: schedule {shown(fields.get('schedule'))}"])
    draft.key = entry.key
    if entry.block:
        draft.add("computed-at-run-time", f"the entry is inside `{entry.block}`: check that it is wanted")
    _set_schedule(draft, fields.get("schedule"), zone)
    task = fields.get("task")
    if not isinstance(task, str):
        draft.add("computed-at-run-time", f"the task is {shown(task)}: write its name as `function`")
    draft.fields["function"] = function_name(task if isinstance(task, str) else shown(task).strip("`"))
    draft.fields |= {"overlap_policy": "allow", "catch_up": "once", "timeout": UNLIMITED, "retry": {"max_attempts": 1}}
    for name, field, kind in (("args", "args", list), ("kwargs", "input", dict)):
        value = fields.get(name)
        if isinstance(value, kind) and is_static(value):
            if value:
                draft.fields[field] = literal(value)
        elif value is not None:
            draft.add("computed-at-run-time", f"`{name}` is {shown(value)}: write it as `{field}`")
    options = fields.get("options") or {}
    _set_options(draft, options)
    if isinstance(task, str) and isinstance(options, dict) and "queue" not in options:
        routes.set_queue(draft, task)
    for name in fields:
        if name not in _ENTRY or (name == "relative" and fields[name]):
            draft.add("field-not-supported", f"`{str(name)[:100]}` is {shown(fields[name])}, which has no equivalent")
    return draft


def _set_schedule(draft: Draft, written: Any, zone: str) -> None:  # noqa: ANN401
    match written:
        case Call(name="schedule"):
            if written.keywords.get("relative"):
                draft.add("field-not-supported", f"`relative` of {shown(written)} has no equivalent")
            _set_schedule(draft, written.args[0] if written.args else written.keywords.get("run_every"), zone)
        case Call(name="crontab") | Call(full="crontab.from_string" | "schedules.crontab.from_string"):
            if set_crontab(draft, written):
                set_timezone(draft, zone)
        case Call(name="solar"):
            draft.add("schedule-not-expressible", f"{shown(written)} follows the sun: write a schedule of your own")
        case timedelta():
            set_interval(draft, written)
        case int() | float() if not isinstance(written, bool) and abs(written) < timedelta.max.total_seconds():
            set_interval(draft, timedelta(seconds=written))
        case _:
            draft.add("computed-at-run-time", f"the schedule is {shown(written)}: write it as `schedule`")


def _set_options(draft: Draft, options: Any) -> None:  # noqa: ANN401
    if not isinstance(options, dict):
        draft.add("computed-at-run-time", f"`options` is {shown(options)}")
        return
    for name, value in options.items():
        match name, value:
            case "queue", str() if is_name(value):
                draft.fields["queue"] = value
            case "priority", int() if not isinstance(value, bool) and abs(value) <= _HIGHEST_PRIORITY:
                draft.fields["priority"] = value
                draft.add(
                    "priority-order", f"priority {value} is kept; with Redis as the broker Celery's 0 is the highest"
                )
            case "expires", _:
                said = f"`expires` is {shown(value)}: a late task still runs; `execution_timeout` ends it"
                draft.add("expiry-not-supported", said)
            case "time_limit", int() | float() if not isinstance(value, bool) and value > 0:
                draft.fields["timeout"] = value
            case _, Unknown() | Call():
                draft.add("computed-at-run-time", f"the option `{str(name)[:100]}` is {shown(value)}")
            case _:
                draft.add(
                    "field-not-supported", f"the option `{str(name)[:100]}` is {shown(value)}, which has no equivalent"
                )


def _other_names(module: ast.Module, values: Values, blocks: Blocks) -> set[_Name]:
    """Return the names that stand for a schedule, and are changed after their first assignment."""
    given: list[ast.expr] = []
    known: set[_Name] = set()
    for node in ast.walk(module):
        given += given_as(node, _SCHEDULES)
        for target, value in assigned(node):
            if isinstance(target, ast.Name):
                known.add((blocks.owner(target), target.id))
            if setting_name(target) in _SCHEDULES:
                given.append(value)
    names = {(blocks.owner(value), value.id): value for value in given if isinstance(value, ast.Name)}
    return {
        name
        for name, value in names.items()
        if name in known and name[1] not in _SCHEDULES and not isinstance(values.of(value), dict)
    }
