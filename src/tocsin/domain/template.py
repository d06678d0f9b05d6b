"""Templates in definitions and settings: Jinja2 in its sandbox, reduced to values, filters and conditions.

    {{ input.day }}   {{ upstream.extract.rows | tojson }}   {% if input.full is defined %}full{% endif %}

There are no loops, calls, assignments and arithmetic, so that rendering ends soon with any values. A value is never
read as a template. Attributes are those of the data alone, so `input.items` is the key `items`. A value that is not text is
written as JSON. An undefined name is an error. In a URL each value is percent-encoded, so that it stays a part of its path or query.
In a JSON document each text is escaped, so that it stays a part of its string. Texts may also be cleaned, after their filters.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import JsonValue

from .errors import TocsinError

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes
    from jinja2.environment import TemplateExpression

VARIABLES: Final = frozenset(
    {"args", "attempt", "execution_id", "fence", "input", "job", "meta", "scheduled_time", "step", "tags", "upstream"}
)
"""The names that a template of a definition may use."""
FILTERS: Final = frozenset(
    {
        *("d", "default", "first", "float", "int", "join", "last", "length"),
        *("lower", "string", "tojson", "trim", "upper", "urlencode"),
    }
)
TESTS: Final = frozenset(
    {"boolean", "defined", "false", "mapping", "none", "number", "sequence", "string", "true", "undefined"}
)
MAX_EXPRESSIONS: Final = 100
"""The number of `{{ … }}` and filters in a template."""
_TAKE_ARGUMENTS: Final = frozenset({"d", "default", "join"})
_MAX_ARGUMENT: Final = 100
"""Characters of a filter's argument."""
_GROWING: Final = frozenset({"join", "tojson", "urlencode"})
"""Filters whose result may be many times as long as the value. A value passes each once, since each further time multiplies it."""
_MAX_SEPARATOR: Final = 10
"""Characters of the argument of `join`, which comes after each character of a text."""
_WHOLE: Final = re.compile(r"\{\{-?(.*?)-?\}\}", re.DOTALL)
_NODES: Final = frozenset(
    {
        *("Template", "Output", "TemplateData", "Name", "Const", "Getattr", "Getitem", "Filter", "Test"),
        *("If", "CondExpr", "Compare", "Operand", "And", "Or", "Not", "Concat", "Neg", "Keyword"),
    }
)


T = TypeVar("T")
Clean: TypeAlias = Callable[[str], str]
"""Returns a text as it may be inserted. It is a function of a module, since templates are cached by it."""
Form: TypeAlias = Literal["text", "url", "json"]
"""The kind of text that a template makes, which decides on the encoding of values."""
_ENCODED: Final[Mapping[tuple[Form, str], str]] = {
    ("url", "urlencode"): "the values of a URL are percent-encoded already; leave the filter `urlencode` out",
    ("json", "tojson"): "the texts of a JSON document are escaped already; leave the filter `tojson` out",
}
"""The filters that do what a form does to each value."""


class TemplateError(TocsinError, ValueError):
    """A template cannot be read or rendered."""

    code = "malformed-template"


class Verbatim(str):
    """A value that is inserted as it is, unless it passes a filter."""

    __slots__ = ()


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text or "{#" in text


def check(text: str, *, form: Form = "text") -> None:
    """Raise TemplateError if a template is malformed, or uses a feature that templates lack."""
    if is_template(text):
        _compiled(text, form)


def render(
    text: str,
    values: Mapping[str, JsonValue],
    *,
    limit: int,
    form: Form = "text",
    names: frozenset[str] = VARIABLES,
    clean: Clean | None = None,
) -> str:
    """Return the text of a template.

    `limit`: the number of characters that the result may have. `names`: the names that the template may use. `clean`: what
    is done to each text that `{{ … }}` inserts, after its filters; None: nothing.

    Raises:
        TemplateError: it is malformed, a value is undefined, or the result is too long.
    """
    if not is_template(text):
        return text
    template = _compiled(text, form, names, clean)

    def rendered() -> str:
        parts, size = list[str](), 0
        for part in template.generate(values):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise TemplateError(f"a template renders to more than {limit:,} characters")
        return "".join(parts)

    return _evaluated(rendered)


def render_value(text: str, values: Mapping[str, JsonValue], *, limit: int) -> JsonValue:
    """Return the value of a template that is a single `{{ … }}`, else its text (`render`)."""
    expression = _expression(text) if is_template(text) else None
    if expression is None:
        return render(text, values, limit=limit)
    return _evaluated(lambda: _plain(expression(values)))


def _evaluated(evaluate: Callable[[], T]) -> T:
    from jinja2 import TemplateError as JinjaError  # noqa: PLC0415 - few jobs have a template

    try:
        return evaluate()
    except TemplateError:
        raise
    except (JinjaError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise TemplateError(f"a template cannot be rendered: {error}") from None


def _plain(value: Any) -> JsonValue:  # noqa: ANN401 - any value
    from jinja2 import Undefined  # noqa: PLC0415

    if isinstance(value, str | Undefined):
        return str(value)  # raises for an undefined name; the text of a filter may be of a derived type
    plain: JsonValue = _finite(value)
    return plain


def _finite(value: Any) -> Any:  # noqa: ANN401
    """Return a value, which the filter `float` may make infinite."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"the filter `float` makes {value}, which JSON does not have")
    return value


def _cleaned(value: object, clean: Clean) -> object:
    if isinstance(value, list | tuple):
        return [_cleaned(element, clean) for element in value]
    if isinstance(value, Mapping):
        return {clean(str(name)): _cleaned(inner, clean) for name, inner in value.items()}
    return clean(str(value)) if isinstance(value, str) and not isinstance(value, Verbatim) else value


@lru_cache(1_024)
def _compiled(text: str, form: Form, names: frozenset[str] = VARIABLES, clean: Clean | None = None) -> "Template":
    return _read(lambda: _environment(form, clean).from_string(_tree(text, form, names)))


@lru_cache(1_024)
def _expression(text: str) -> "TemplateExpression | None":
    """Return the only expression of a template; None: it has more than that."""
    from jinja2 import nodes  # noqa: PLC0415

    tree = _read(lambda: _tree(text, "text"))
    match tree.body:
        case [nodes.Output(nodes=[node])] if not isinstance(node, nodes.TemplateData):
            whole = _WHOLE.fullmatch(text)
        case _:
            whole = None
    if whole is None:
        return None
    return _read(lambda: _environment("text").compile_expression(whole[1].strip(), undefined_to_none=False))


def _tree(text: str, form: Form, names: frozenset[str] = VARIABLES) -> "nodes.Template":
    tree = _environment(form).parse(text)
    for reason in _refusals(tree, form, names):
        raise TemplateError(reason)
    return tree


def _read(read: Callable[[], T]) -> T:
    from jinja2 import TemplateError as JinjaError  # noqa: PLC0415

    try:
        return read()
    except (JinjaError, RecursionError, MemoryError, SyntaxError) as error:
        raise TemplateError(f"no readable template: {str(error) or type(error).__name__}") from None


def _refusals(tree: "nodes.Template", form: Form, names: frozenset[str]) -> Iterator[str]:
    from jinja2 import nodes  # noqa: PLC0415

    expressions, stack = 0, list[nodes.Node]([tree])
    while stack:
        node = stack.pop()
        stack.extend(node.iter_child_nodes())
        match node:
            case nodes.Name() if node.name not in names:
                yield f"`{node.name}` is no name of a template; the names are {', '.join(sorted(names))}"
            case nodes.Filter():
                expressions += 1
                if reason := _ENCODED.get((form, node.name)):
                    yield reason
                yield from _filter_refusals(node)
            case nodes.Test() if node.name not in TESTS or node.args or node.kwargs:
                yield f"`is {node.name}` is no test of a template; the tests are {', '.join(sorted(TESTS))}"
            case nodes.Concat():
                expressions += len(node.nodes)
            case nodes.Output():
                expressions += sum(not isinstance(part, nodes.TemplateData) for part in node.nodes)
        if type(node).__name__ not in _NODES:
            yield (
                f"a template has no {type(node).__name__} (line {node.lineno}): it has values, filters and `if`, "
                "and no loops, calls and arithmetic"
            )
    if expressions > MAX_EXPRESSIONS:
        yield f"a template has at most {MAX_EXPRESSIONS} expressions and filters, and this has {expressions}"


def _filter_refusals(node: "nodes.Filter") -> Iterator[str]:
    from jinja2 import nodes  # noqa: PLC0415

    if node.name not in FILTERS or node.node is None:
        yield f"`{node.name}` is no filter of a template; the filters are {', '.join(sorted(FILTERS))}"
    if node.name in _GROWING and any(inner.name == node.name for inner in node.find_all(nodes.Filter)):
        yield f"a value passes the filter `{node.name}` once"
    arguments = [
        *node.args,
        *(keyword.value for keyword in node.kwargs),
        *filter(None, (node.dyn_args, node.dyn_kwargs)),
    ]
    if arguments and node.name not in _TAKE_ARGUMENTS:
        yield f"the filter `{node.name}` takes no arguments"
    for argument in arguments:
        longest = _MAX_SEPARATOR if node.name == "join" else _MAX_ARGUMENT
        if not isinstance(argument, nodes.Const) or len(str(argument.value)) > longest:
            yield f"an argument of the filter `{node.name}` is a constant of at most {longest} characters"


@cache
def _environment(form: Form, clean: Clean | None = None) -> "Environment":
    from jinja2 import StrictUndefined, Undefined  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class DataEnvironment(ImmutableSandboxedEnvironment):
        """Reads the keys and elements of data, and no attribute of an object."""

        def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - any value
            return self.getitem(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401
            if isinstance(obj, Undefined):
                return obj[argument]  # raises
            is_member = isinstance(obj, Mapping) if isinstance(argument, str) else isinstance(obj, list | tuple)
            if is_member:
                try:
                    return obj[argument]
                except (LookupError, TypeError):
                    pass
            return self.undefined(obj=obj, name=argument)

    def finalize(value: object) -> object:
        if isinstance(value, Undefined):
            return value
        if clean is not None:
            value = _cleaned(value, clean)
        if form == "json":
            text = json.dumps(_finite(value))
            return text[1:-1] if isinstance(value, str) else text
        text = value if isinstance(value, str) else json.dumps(_finite(value), ensure_ascii=False)
        return quote(text, safe="") if form == "url" else text

    # The optimizer computes each part of an expression again for each part around it, and folds infinity into a name.
    return DataEnvironment(
        optimized=False,
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        finalize=finalize,
        cache_size=0,
    )
