"""The partition of a job: on which shards an occurrence runs (scratchbird, Partition Rules)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Self, TypeAlias

from pydantic import BeforeValidator, JsonValue, ValidationInfo, model_validator

from .concurrency import value_of
from .errors import DefinitionProblem, show
from .fields import Flag, StoredModel, is_stored, matching

MAX_SHARDS: Final = 1_000
"""The largest number of shards of an installation, and so of the executions of one occurrence."""
ALL_SHARDS: Final = "all_shards"
_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEY: Final = re.compile(r"input(\.[A-Za-z0-9_\-]+)+")
_MAX_KEY: Final = 255


def is_shard_id(text: str) -> bool:
    """Return whether a shard may have this id, which is one token of a subject."""
    return _ID.fullmatch(text) is not None


ShardId: TypeAlias = Annotated[
    str,
    matching(_ID, "must be 1 to 64 lower-case letters, digits, hyphens and underscores, the first a letter or a digit"),
]
ShardKey: TypeAlias = Annotated[
    str,
    matching(
        _KEY,
        "must be a path into the run's input, such as `input.customer_id`: names of letters, digits, underscores and "
        f"hyphens, joined by dots, at most {_MAX_KEY} characters. No other expressions are read",
        _MAX_KEY,
    ),
]


class Partition(StoredModel):
    """The shards on which an occurrence or a trigger runs: exactly one field.

    There is one execution on each shard.
    """

    all_shards: Flag = False
    """One execution on every active shard."""
    single_shard: ShardId | None = None
    """One execution on this shard, if it is active."""
    shard_set: tuple[ShardId, ...] = ()
    """One execution on each of these shards that is active."""
    shard_key: ShardKey | None = None
    """One execution, on the shard of the value at this path of its input: `input.customer_id`."""

    @model_validator(mode="after")
    def _is_one_rule(self, info: ValidationInfo) -> Self:
        if not is_stored(info):
            given = [name for name in type(self).model_fields if getattr(self, name)]
            if len(given) != 1:
                raise ValueError(
                    "give exactly one of `all_shards`, `single_shard`, `shard_set` and `shard_key`"
                    + (f", not {' and '.join(given)}" if given else "")
                )
            if len(self.shard_set) > MAX_SHARDS or len(set(self.shard_set)) != len(self.shard_set):
                raise ValueError(f"`shard_set` names each shard once, and at most {MAX_SHARDS:,}")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        return self.shard_set if self.single_shard is None else (self.single_shard,)

    @property
    def has_one(self) -> bool:
        return self.single_shard is not None or self.shard_key is not None


def _spelled(value: Any) -> Any:  # noqa: ANN401 - before validation
    """Let `all_shards` stand for `{all_shards: true}`."""
    if isinstance(value, str) and value.strip().lower().replace("-", "_") == ALL_SHARDS:
        return {ALL_SHARDS: True}
    return value


PartitionField: TypeAlias = Annotated[Partition, BeforeValidator(_spelled, json_schema_input_type=Partition | str)]


def partition_problems(
    partition: Partition | None,
    input: Mapping[str, JsonValue],  # noqa: A002 - the name of the field
    *,
    is_scheduled: bool,
    leads: bool,
) -> Iterator[DefinitionProblem]:
    """Yield the problems of a job's partition with its other fields.

    `is_scheduled`: the job has a schedule, so that its own input must say the shard. `leads`: the job is `LEADER_ONLY`.
    """
    if partition is None:
        return
    if leads:
        reason = "a single agent gets the tasks of a `LEADER_ONLY` job, and each shard has an owner of its own: leave one of the two out"
        yield DefinitionProblem(reason, field="partition", code="exclusive-fields")
    key = partition.shard_key
    if key is not None and is_scheduled and value_of(key, {"input": input}) is None:
        reason = f"an occurrence has the job's own input, and that has no `{key.partition('.')[2]}`: add it, or drop `schedule`"
        yield DefinitionProblem(reason, field="partition.shard_key", value=show(key), code="required")


def key_problems(
    partition: Partition | None,
    input: Mapping[str, JsonValue],  # noqa: A002 - the name of the field
) -> Iterator[DefinitionProblem]:
    """Yield a problem if a run's input does not name its shard."""
    key = None if partition is None else partition.shard_key
    if key is not None and value_of(key, {"input": input}) is None:
        reason = f"the shard of a run is that of its `{key}`, and its input has none: add it"
        yield DefinitionProblem(reason, field=key, code="required")


def shown(ids: Sequence[str], most: int = 5) -> str:
    return ", ".join(ids[:most]) + (f" and {len(ids) - most:,} more" if len(ids) > most else "")
