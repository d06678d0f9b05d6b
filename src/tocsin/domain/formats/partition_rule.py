"""ScratchBird's `partition_rule`, as the `partition` of a definition (scratchbird, Partition Rules)."""

import re
from collections.abc import Mapping
from typing import Final

STRATEGIES: Final[Mapping[str, tuple[str, ...]]] = {
    "ALL_SHARDS": (),
    "SINGLE_SHARD": ("shard_uuid", "shard"),
    "SHARD_SET": ("shard_uuids", "shards"),
    "DYNAMIC": ("partition_expression",),
}
"""The fields of each strategy, one of which names the shards; shards have names here, and no UUIDs."""
_COLUMN: Final = re.compile(r"[A-Za-z0-9_\-]+")


def partition_of(rule: object) -> dict[str, object] | str:
    """Return the partition of a rule, or what is wrong with the rule."""
    if not isinstance(rule, Mapping):
        return 'write a mapping, such as {"strategy": "ALL_SHARDS"}'
    strategy = rule.get("strategy")
    name = strategy.upper() if isinstance(strategy, str) else ""
    if name not in STRATEGIES:
        return f"`strategy` is one of {', '.join(STRATEGIES)}"
    fields = STRATEGIES[name]
    given = [field for field in rule if field != "strategy"]
    if len(given) != bool(fields) or any(field not in fields for field in given):
        needs = f"exactly one of {', '.join(f'`{field}`' for field in fields)}" if fields else "no other field"
        return f"with the strategy {name} give {needs}"
    if name == "ALL_SHARDS":
        return {"all_shards": True}
    value = rule[given[0]]
    if name == "DYNAMIC":
        is_column = isinstance(value, str) and _COLUMN.fullmatch(value) is not None
        return {"shard_key": f"input.{value}" if is_column else value}
    return {"single_shard" if name == "SINGLE_SHARD" else "shard_set": value}


def clause_of(partition: Mapping[str, object]) -> str | None:
    """Return the rule of `PARTITION BY` for a stored partition; None: no clause says it."""
    match partition:
        case {"all_shards": True}:
            return "ALL_SHARDS"
        case {"single_shard": str(shard)}:
            return f"SHARD '{shard}'"
        case {"shard_set": [*shards]}:
            names = ", ".join(f"'{shard}'" for shard in shards)
            return f"SHARD_SET ({names})"
        case {"shard_key": str(key)}:
            return f"DYNAMIC '{key}'"
        case _:
            return None
