"""Policies of a job: its unique key (ojs-unique-jobs §2, §4) and its rate (ojs-rate-limiting §6)."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from ....domain import duration
from ....domain.events import ENDED_STATES, OPEN_STATES, JobState, OnConflict, StartRate, UniqueRule

Dimension: TypeAlias = Literal["type", "queue", "args", "meta"]
_Period: TypeAlias = Annotated[float, BeforeValidator(duration.parse), Field(gt=0)]
_Names: TypeAlias = Annotated[list[str], Field(max_length=100)]

_LEAST_WITH_EXPONENT: Final = 1e21
_LEAST_WITHOUT_EXPONENT: Final = 1e-6


def canonical_json(value: object) -> str:
    """Return the canonical text of a JSON value (RFC 8785).

    Integers stay exact beyond 2^53, where the RFC rounds them: two ids that differ must not count as equal.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    match value:
        case str():
            return json.dumps(unicodedata.normalize("NFC", value), ensure_ascii=False)
        case float():
            return _number(value)
        case list() | tuple():
            return f"[{','.join(map(canonical_json, value))}]"
        case dict():
            entries = {unicodedata.normalize("NFC", str(name)): entry for name, entry in value.items()}
            names = sorted(entries, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{canonical_json(name)}:{canonical_json(entries[name])}" for name in names) + "}"
        case _:
            return json.dumps(value)


def _number(number: float) -> str:
    """Write a finite number as ECMAScript does: with the fewest digits that suffice."""
    if number == int(number) and abs(number) < _LEAST_WITH_EXPONENT:
        return str(int(number))
    if _LEAST_WITHOUT_EXPONENT <= abs(number) < _LEAST_WITH_EXPONENT:
        return f"{Decimal(repr(number)):f}"
    return repr(number).replace("e-0", "e-")


class InvalidPolicy(ValueError):
    """A policy is invalid in one field."""

    def __init__(self, field: str, value: object, requirement: str | None = None) -> None:
        super().__init__(field)
        self.field = field
        self.value = value
        self.requirement = requirement or UniquePolicy.model_fields[field].description or ""


class UniquePolicy(BaseModel, strict=True, extra="forbid", use_attribute_docstrings=True):
    """A policy. Other fields are refused, so that a misspelled one is noticed."""

    keys: list[Dimension] = ["type"]
    """must be an array of different words, each of which is `type`, `queue`, `args` or `meta`"""
    args_keys: _Names | None = None
    """must be an array of 1 to 100 different names of fields in `args`, and needs `args` in `keys`"""
    meta_keys: _Names | None = None
    """must be an array of 1 to 100 different names of fields in `meta`, and belongs to `meta` in `keys`"""
    period: _Period | None = None
    """must be an ISO 8601 duration of more than 0 seconds, e.g. `PT1H`"""
    states: list[JobState] = list(OPEN_STATES)
    """must be an array of at least one of the states of jobs, e.g. `available`, each once"""
    on_conflict: OnConflict = "reject"
    """must be `reject`, `replace`, `replace_except_schedule` or `ignore`"""

    @model_validator(mode="before")
    @classmethod
    def _accept_key(cls, given: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Accept `key`, as the official Python SDK calls `keys`, and null for absent."""
        if not isinstance(given, dict):
            return given
        fields = {name: value for name, value in given.items() if value is not None}
        if "key" in fields and "keys" not in fields:
            fields["keys"] = fields.pop("key")
        return fields

    def rule(
        self,
        *,
        type: str,  # noqa: A002 - the field is called so
        queue: str,
        args: Sequence[Any],
        meta: Mapping[str, Any],
        remembered: float,
    ) -> UniqueRule:
        """Return the rule of a job.

        `remembered`: seconds for which ended jobs are known; a longer period with their states cannot be kept.

        Raises:
            InvalidPolicy: the policy is invalid, or does not suit the job.
        """
        self._require_effect()
        if self.period is not None and self.period > remembered and ENDED_STATES.intersection(self.states):
            limit = duration.short(remembered)
            requirement = (
                f"must be at most {limit}, `archive.hot_window` of the settings, if `states` has a state of ended jobs"
            )
            raise InvalidPolicy("period", duration.short(self.period), requirement)
        dimensions: dict[str, Any] = {"type": type}
        if "queue" in self.keys:
            dimensions["queue"] = queue
        if "args" in self.keys:
            dimensions["args"] = args if self.args_keys is None else _selected("args_keys", self.args_keys, *args)
        if "meta" in self.keys:
            if not self.meta_keys:
                raise InvalidPolicy("meta_keys", self.meta_keys)
            dimensions["meta"] = _selected("meta_keys", self.meta_keys, meta)
        try:
            text = canonical_json(dimensions)
        except RecursionError:
            raise InvalidPolicy("keys", self.keys, "must name values that are less deeply nested") from None
        key = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return UniqueRule(key=key, states=tuple(self.states), period=self.period, on_conflict=self.on_conflict)

    def _require_effect(self) -> None:
        """Require that no field is ignored, so that no names stand without their dimension."""
        for field in ("keys", "args_keys", "meta_keys", "states"):
            names = getattr(self, field) or []
            if len(set(names)) != len(names):
                raise InvalidPolicy(field, names)
        if not self.states:
            raise InvalidPolicy("states", self.states)
        for dimension, given in (("args", self.args_keys), ("meta", self.meta_keys)):
            if given is not None and (not given or dimension not in self.keys):
                raise InvalidPolicy(f"{dimension}_keys", given)


def _selected(field: str, names: Sequence[str], *sources: object) -> dict[str, Any]:
    """Return fields of the first of several values that has each of them."""
    fields: dict[str, Any] = {}
    for source in reversed(sources):
        if isinstance(source, Mapping):
            fields.update(source)
    for name in names:
        if name not in fields:
            raise InvalidPolicy(field, name)
    return {name: fields[name] for name in names}


_RatePeriod: TypeAlias = Annotated[float, BeforeValidator(duration.parse), Field(ge=0.001, le=31_536_000)]
_Limit: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
_WINDOW: Final = "must be an object with `limit`, an integer from 1 to 1,000,000, and `period`, an ISO 8601 duration of at most a year"


class _Window(BaseModel, strict=True, extra="forbid"):
    limit: _Limit
    period: _RatePeriod


class RatePolicy(BaseModel, strict=True, extra="forbid", use_attribute_docstrings=True):
    """A policy. It has no other fields."""

    key: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._:-]*$", max_length=200)
    """must be at most 200 letters, digits and `._:-`, the first a letter or a digit"""
    max_per_second: _Limit | None = None
    """must be an integer from 1 to 1,000,000"""
    rate: _Window | None = Field(default=None, description=_WINDOW)
    throttle: _Window | None = Field(default=None, description=_WINDOW)
    on_limit: Literal["wait"] = "wait"
    """must be `wait`, which is the only action that is supported"""

    def rule(self, queue: str, remembered: float) -> StartRate:
        """Return the rate of a job.

        `remembered`: seconds in which a rate that was used up must recover. So long is an entry kept for each key, of which clients may
        invent any number.

        Raises:
            InvalidPolicy: not exactly one limit is given, or it recovers too slowly.
        """
        key = f"queue:{queue}" if self.key is None else f"key:{self.key}"
        match self.rate, self.throttle, self.max_per_second:
            case _Window() as window, None, None:
                rate = StartRate(key=key, limit=window.limit, per=window.period, burst=window.limit)
            case None, _Window() as window, None:
                rate = StartRate(key=key, limit=window.limit, per=window.period, burst=1)
            case None, None, int() as limit:
                rate = StartRate(key=key, limit=limit, per=1.0, burst=limit)
            case _:
                right = "must have one of `rate`, `throttle` and `max_per_second`"
                raise InvalidPolicy("", self.model_dump(exclude_none=True), right)
        if rate.burst * rate.per / rate.limit > remembered:
            at_most = f"at most {duration.short(remembered)}, `archive.hot_window` of the settings"
            right = f"must refill in {at_most}: a `rate` in its `period`, a `throttle` in `period` / `limit`"
            given = f"{rate.limit:,} in {duration.short(rate.per)}"
            raise InvalidPolicy("throttle" if self.rate is None else "rate", given, right)
        return rate
