"""The DAGs of a file: tasks and their order, read without a run."""

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ...domain.definition import DefinitionError, DefinitionProblem
from .python_values import Call, Values, dotted, is_main, last_name, source_of

_DEEPEST: Final = 1_000


@dataclass(eq=False, slots=True)
class Group:
    """A task group."""

    name: str
    parent: "Group | None"

    @property
    def path(self) -> tuple["Group", ...]:
        """The group and the groups around it, the outermost first."""
        return (*(self.parent.path if self.parent else ()), self)


@dataclass(eq=False, slots=True)
class Task:
    """A task of a DAG.

    Attributes:
        call: the call of its operator, or of its function.
        group: the group around it.
        function: the decorated function, of a task of the TaskFlow API.
        settings: the arguments of the decorator and of `override`.
        is_mapped: whether the number of its copies is computed at run time.
    """

    call: Call
    line: int
    group: Group | None = None
    function: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    is_mapped: bool = False
    has_upstream_values: bool = False
    parameters: tuple[str, ...] = ()
    """The names of the function's positional parameters."""


Node: TypeAlias = Task | Group


@dataclass(eq=False, slots=True)
class Dag:
    """A DAG of the file, with its tasks and the links between them."""

    call: Call | None
    """The call that makes it; None: a decorator without arguments."""
    line: int
    name: str | None = None
    """The name of the function that `@dag` decorates."""
    tasks: list[Task] = field(default_factory=list)
    links: list[tuple[Node, Node]] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    """Lines with tasks or links that are computed at run time."""
    changes: list[tuple[int, str]] = field(default_factory=list)
    """Lines that set an attribute of the DAG or of a task, and its name."""


def task_links(dag: Dag) -> dict[Task, list[Task]]:
    """Return the tasks before each task; a group stands for its first or last tasks."""
    before: dict[Task, dict[Task, None]] = {task: {} for task in dag.tasks}
    after: dict[Task, dict[Task, None]] = {task: {} for task in dag.tasks}
    ends: dict[tuple[Node, bool], list[Task]] = {}

    def members(node: Node, *, are_last: bool) -> list[Task]:
        if isinstance(node, Task):
            return [node]
        if (node, are_last) not in ends:
            inner = after if are_last else before
            inside = {task for task in dag.tasks if task.group and node in task.group.path}
            ends[node, are_last] = [task for task in dag.tasks if task in inside and inside.isdisjoint(inner[task])]
        return ends[node, are_last]

    # Links inside a group come before those of the group, whose first and last tasks they determine.
    for first, second in sorted(dag.links, key=lambda link: min(map(_depth, link)), reverse=True):
        for one in members(first, are_last=True):
            for other in members(second, are_last=False):
                if one in before and other in before and one is not other:
                    before[other][one] = None
                    after[one][other] = None
    return {task: [*earlier] for task, earlier in before.items()}


def _depth(node: Node) -> int:
    return len(node.path) if isinstance(node, Group) else _DEEPEST


MAX_TASKS: Final = 1_000
"""Tasks of a DAG, as many as a job may have steps."""
MAX_LOOP_NODES: Final = 100_000
"""Nodes of the syntax tree that are read in loops, each counted in each round."""
MAX_LINKS: Final = 200_000
"""Links between tasks in a file, repeated links included."""
_TASK_FUNCTION: Final = "@task"


def is_label(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node) == "Label"


def is_dag(name: str) -> bool:
    """Return whether a name belongs to `DAG`, or to a class derived from it."""
    return name.rpartition(".")[2][:1].isupper() and name.lower().endswith("dag")


def calls_of(call: ast.Call) -> Iterator[ast.Call]:
    """Yield the calls before the last in `partial(…).expand(…)`."""
    base = call.func
    while isinstance(base, ast.Attribute | ast.Call):
        if isinstance(base, ast.Call):
            yield base
        base = base.func if isinstance(base, ast.Call) else base.value


def is_operator(name: str) -> bool:
    return name.rpartition(".")[2].endswith(("Operator", "Sensor", "SensorAsync", "OperatorAsync"))


def is_task(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (
        is_operator(dotted(node.func))
        or last_name(node) == "DAG"
        or any(each.arg == "task_id" for each in node.keywords)
    )


@dataclass(frozen=True, slots=True)
class _TaskFunction:
    name: str
    kind: str
    settings: dict[str, Any]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scope:
    dag: Dag | None = None
    group: Group | None = None


class Graphs:
    """The DAGs of a file."""

    def __init__(self, module: ast.Module, values: Values) -> None:
        self.dags: list[Dag] = []
        self.skipped: list[tuple[int, str]] = []
        self._values = values
        self._names: dict[str, Any] = {}
        self._links = 0
        self._loop_nodes = 0
        self._owners: dict[Node, Dag] = {}
        self.settled: set[ast.AST] = set()
        """Nodes that became a part of a DAG, were reported, or make no tasks of this file."""
        self._functions: set[str] = set()
        self._defined: set[ast.AST] = set()
        """The functions that statements of the file define."""
        self._run(module.body, _Scope())
        self._report_rest(module)

    def _run(self, statements: Sequence[ast.stmt], scope: _Scope) -> None:
        for statement in statements:
            match statement:
                case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                    self._of(value, scope)
                case ast.Assign(targets=targets, value=value):
                    result = self._of(value, scope)
                    for target in targets:
                        self._bind(target, result)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind(target, self._of(value, scope))
                case _:
                    self._run_block(statement, scope)

    def _run_block(self, statement: ast.stmt, scope: _Scope) -> None:
        match statement:
            case ast.With() | ast.AsyncWith():
                inner = scope
                for item in statement.items:
                    inner = self._entered(item, inner)
                self._run(statement.body, inner)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(statement, scope)
            case ast.Try():
                self._run([*statement.body, *statement.orelse, *statement.finalbody], scope)
            case ast.If() if isinstance(chosen := self._values.of(statement.test), bool):
                self._settle(*(statement.orelse if chosen else statement.body))
                self._run(statement.body if chosen else statement.orelse, scope)
            case ast.For() if self._makes_tasks(statement) and (rounds := self._rounds_of(statement, scope)):
                outer = self._values
                for names, nodes in rounds:
                    self._values = outer.bound(names)
                    self._names |= nodes
                    self._run(statement.body, scope)
                self._values = outer
            case ast.If() | ast.For() | ast.While() | ast.Match() if self._makes_tasks(statement):
                self._skip(statement.lineno, f"the tasks inside `{type(statement).__name__.lower()}`", scope)
                self._settle(statement)
            case ast.If() if is_main(statement):
                self._settle(*statement.body)

    def _rounds_of(self, loop: ast.For, scope: _Scope) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return a loop's values and tasks in each round; empty: computed at run time."""
        targets = [loop.target] if isinstance(loop.target, ast.Name) else getattr(loop.target, "elts", [])
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        nodes, values = self._of(loop.iter, scope), self._values.of(loop.iter)
        are_tasks = isinstance(nodes, list) and any(isinstance(node, Task | Group) for node in nodes)
        items = nodes if are_tasks else values
        if not isinstance(items, list) or not names or len(names) != len(targets):
            return []
        self._loop_nodes += len(items) * sum(1 for _ in ast.walk(loop))
        if self._loop_nodes > MAX_LOOP_NODES:
            reason = "the loops of the file have too many rounds to be followed: divide the file"
            raise DefinitionError(DefinitionProblem(reason, source=f":{loop.lineno}", code="too-large"))
        rows = [[item] if isinstance(loop.target, ast.Name) else item for item in items]
        if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
            return []
        none = dict.fromkeys(names)
        named = [dict(zip(names, row, strict=True)) for row in rows]
        return [({}, row) if are_tasks else (row, none) for row in named]

    def _entered(self, item: ast.withitem, scope: _Scope) -> _Scope:
        value = self._of(item.context_expr, scope)
        if item.optional_vars is not None:
            self._bind(item.optional_vars, value)
        match value:
            case Dag():
                return _Scope(value)
            case Group():
                return _Scope(scope.dag, value)
            case _:
                return scope

    def _define(self, function: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
        self._defined.add(function)
        for decorator in function.decorator_list:
            name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
            call = self._values.of(decorator) if isinstance(decorator, ast.Call) else None
            settings = dict(call.keywords) if isinstance(call, Call) else {}
            first, _, rest = name.partition(".")
            if last_name(decorator) == "dag":
                dag = Dag(call if isinstance(call, Call) else None, function.lineno, function.name)
                self.dags.append(dag)
                self._run(function.body, _Scope(dag))
                return
            if first == "task" and rest != "group":
                self._settle(*function.body)
                self._functions.add(function.name)
                self._names[function.name] = _TaskFunction(
                    function.name, rest, settings, tuple(each.arg for each in function.args.args)
                )
                return
            if last_name(decorator) == "task_group":
                self._skip(function.lineno, f"the task group `{function.name}`", scope)
                self._settle(function)
                return
        if any(isinstance(each, ast.Call) and last_name(each) == "DAG" for each in ast.walk(function)):
            self._skip(function.lineno, f"the DAG that the function `{function.name}` makes", scope)
            self._settle(function)

    def _bind(self, target: ast.expr, value: Any) -> None:  # noqa: ANN401
        match target:
            case ast.Name(id=name):
                self._names[name] = value
            case ast.Attribute(attr=attribute) if not attribute.startswith("doc"):
                owner = self._of(target.value, _Scope())
                dag = owner if isinstance(owner, Dag) else self._owners.get(owner) if isinstance(owner, Task) else None
                if dag is not None:
                    dag.changes.append((target.lineno, source_of(target)))
            case ast.Tuple(elts=targets) | ast.List(elts=targets) if isinstance(value, list) and len(value) == len(
                targets
            ):
                for each, part in zip(targets, value, strict=True):
                    self._bind(each, part)

    def _makes_tasks(self, statement: ast.stmt) -> bool:
        if is_main(statement):
            return False
        return any(
            is_task(each)
            or (isinstance(each, ast.BinOp) and isinstance(each.op, ast.RShift | ast.LShift))
            or (isinstance(each, ast.Name) and isinstance(self._names.get(each.id), _TaskFunction | Task | Group))
            for each in ast.walk(statement)
        )

    def _skip(self, line: int, what: str, scope: _Scope) -> None:
        skipped = scope.dag.skipped if scope.dag else self.skipped
        if (line, what) not in skipped[-100:]:
            skipped.append((line, what))

    def _settle(self, *nodes: ast.AST) -> None:
        self.settled.update(each for node in nodes for each in ast.walk(node))

    def _report_rest(self, module: ast.Module) -> None:
        """Report DAGs and tasks that no statement led to, as in comprehensions and functions."""
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in self._defined:
                self._report_function(node)
            elif isinstance(node, ast.Call) and node not in self.settled:
                name = dotted(node.func)
                if is_operator(name) or is_dag(name) or name.partition(".")[0] in self._functions:
                    self._skip(
                        node.lineno, f"`{source_of(node)}`, which no statement that can be read leads to,", _Scope()
                    )
                    self._settle(node)

    def _report_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if function not in self.settled and "dag" in map(last_name, function.decorator_list):
            self._skip(
                function.lineno,
                f"the DAG of the function `{function.name}`, which is inside another function, a condition or a loop,",
                _Scope(),
            )
            self._settle(function)

    def _of(self, node: ast.expr, scope: _Scope) -> Any:  # noqa: ANN401, PLR0911 - a case for each kind of expression
        match node:
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._of(part, scope) for part in parts]
            case ast.Attribute(value=value, attr="output"):
                return self._of(value, scope)
            case ast.Subscript(value=value, slice=index):
                owner, at = self._of(value, scope), self._values.of(index)
                if isinstance(owner, list) and isinstance(at, int) and -len(owner) <= at < len(owner):
                    return owner[at]
                return owner if isinstance(owner, Task) else None
            case ast.BinOp(left=left, op=ast.RShift() | ast.LShift() as arrow, right=right):
                before, after = self._of(left, scope), self._of(right, scope)
                if is_label(right):
                    return before
                first, second = (before, after) if isinstance(arrow, ast.RShift) else (after, before)
                self._link(first, second, node, scope)
                return after
            case ast.Call():
                return self._called(node, scope)
            case _:
                return None

    def _called(self, node: ast.Call, scope: _Scope) -> Any:  # noqa: ANN401, PLR0911 - a case for each function
        name = last_name(node) or getattr(node.func, "attr", "")
        if name == "DAG":
            call = self._values.of(node)
            self.settled.add(node)
            if isinstance(call, Call):
                self.dags.append(Dag(call, node.lineno))
                return self.dags[-1]
            self._skip(node.lineno, f"`{source_of(node)}`", scope)
            return None
        if name == "TaskGroup":
            call = self._values.of(node)
            named = (call.keywords.get("group_id") or next(iter(call.args), None)) if isinstance(call, Call) else None
            return Group(named if isinstance(named, str) else "group", scope.group)
        if name in {"set_upstream", "set_downstream"} and isinstance(node.func, ast.Attribute):
            owner = self._of(node.func.value, scope)
            for argument in node.args:
                other = self._of(argument, scope)
                first, second = (other, owner) if name == "set_upstream" else (owner, other)
                self._link(first, second, node, scope)
            return None
        if name in {"chain", "chain_linear", "cross_downstream"}:
            self._chain(name, node, scope)
            return None
        if name == "append" and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            self._append(node.func.value, node.args[0], scope)
            return None
        return self._task(node, scope)

    def _append(self, owner: ast.expr, value: ast.expr, scope: _Scope) -> None:
        tasks, task = self._of(owner, scope), self._of(value, scope)
        if isinstance(tasks, list) and isinstance(task, Task | Group):
            tasks.append(task)

    def _chain(self, name: str, node: ast.Call, scope: _Scope) -> None:
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            self._skip(node.lineno, f"`{source_of(node)}`", scope)
            return
        parts = [self._of(argument, scope) for argument in node.args if not is_label(argument)]
        for before, after in itertools.pairwise(parts):
            if name == "chain" and isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
                for one, other in zip(before, after, strict=True):
                    self._link(one, other, node, scope)
            else:
                self._link(before, after, node, scope)

    def _task(self, node: ast.Call, scope: _Scope) -> Task | None:
        base, settings, is_mapped = node.func, dict[str, Any](), False
        keywords = list(node.keywords)
        while isinstance(base, ast.Attribute | ast.Call):
            inner = base.func if isinstance(base, ast.Call) else base
            if not (
                isinstance(inner, ast.Attribute) and inner.attr in {"expand", "expand_kwargs", "partial", "override"}
            ):
                break
            is_mapped = is_mapped or inner.attr.startswith("expand")
            if isinstance(base, ast.Call):
                settings |= {each.arg: self._values.of(each.value) for each in base.keywords if each.arg}
                keywords += base.keywords
            base = inner.value
        known = self._names.get(base.id) if isinstance(base, ast.Name) else None
        call = self._values.of(node)
        makes_task = is_operator(dotted(base)) or any(each.arg == "task_id" for each in keywords)
        function = known if isinstance(known, _TaskFunction) else None
        inputs = [*self._inputs(node, scope)]
        if not (isinstance(call, Call) and (function or makes_task)):
            return None
        if function is None and is_mapped:
            call = Call(dotted(base).rpartition(".")[2], dotted(base), (), settings, call.text, call.line, node=node)
        self.settled.update((node, *calls_of(node)))
        task = Task(call, node.lineno, scope.group, None, settings, is_mapped)
        if function is not None:
            task.parameters = function.parameters
            task.function, task.settings = (
                function.name,
                {**function.settings, **settings, _TASK_FUNCTION: function.kind},
            )
        dag = self._dag_of(call, scope)
        if dag is None or len(dag.tasks) >= MAX_TASKS:
            self._skip(
                node.lineno, f"`{source_of(node)}`, which belongs to no DAG or is more than {MAX_TASKS:,}", scope
            )
            return None
        dag.tasks.append(task)
        self._owners[task] = dag
        task.has_upstream_values = bool(inputs)
        for before in inputs:
            self._link(before, task, node, _Scope(dag, scope.group))
        return task

    def _dag_of(self, call: Call, scope: _Scope) -> Dag | None:
        written = next((each.value for each in call.node.keywords if each.arg == "dag"), None)
        named = self._names.get(written.id) if isinstance(written, ast.Name) else None
        if isinstance(named, Dag):
            return named
        return scope.dag or (self.dags[0] if len(self.dags) == 1 else None)

    def _inputs(self, node: ast.Call, scope: _Scope) -> Iterator[Task]:
        """Yield the tasks with results that are arguments."""
        for argument in (*node.args, *(each.value for each in node.keywords if each.arg not in {"dag", "task_group"})):
            if isinstance(argument, ast.Call | ast.Name | ast.List | ast.Tuple | ast.Attribute | ast.Subscript):
                yield from (each for each in _flat(self._of(argument, scope)) if isinstance(each, Task))

    def _link(self, before: Any, after: Any, node: ast.expr, scope: _Scope) -> None:  # noqa: ANN401
        firsts, seconds = _flat(before), _flat(after)
        if not firsts or not seconds:
            if firsts or seconds or scope.dag:
                self._skip(node.lineno, f"the order `{source_of(node)}`", scope)
            return
        self._links += len(firsts) * len(seconds)
        if self._links > MAX_LINKS:
            reason = f"more than {MAX_LINKS:,} links between tasks: divide the file"
            raise DefinitionError(DefinitionProblem(reason, source=f":{node.lineno}", code="too-large"))
        owner = next((self._owners[each] for each in (*firsts, *seconds) if each in self._owners), scope.dag)
        if owner is not None:
            owner.links.extend((first, second) for first in firsts for second in seconds)


def _flat(value: Any) -> list[Node]:  # noqa: ANN401
    if isinstance(value, Task | Group):
        return [value]
    nodes: Iterable[Any] = value if isinstance(value, list) else ()
    return list(dict.fromkeys(node for each in nodes for node in _flat(each)))
