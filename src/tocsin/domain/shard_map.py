"""The shard map: which shards there are, and on which of them an execution runs.

A value goes to one of 256 virtual nodes by a fixed hash, and each virtual node to an active shard by rendezvous hashing. So a
shard that joins or leaves moves its own part of the values, and no other. Both are pure: the same map and value give the
same shard in every process and version.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from pydantic import ConfigDict, JsonValue, TypeAdapter

from .definition import value_of
from .definition.errors import read_entries
from .definition.partition import MAX_SHARDS, Partition, is_shard_id, shown
from .errors import TocsinError
from .events.shards import Shard, ShardsDefined, ShardState

MAX_LABELS: Final = 50
MAX_TEXT: Final = 255
"""Characters of a name or a label."""
MAX_MAP_BYTES: Final = 524_288
"""Bytes of the event with a map, which must be one message. A thousand shards without labels have about 40,000."""


class WrongShardMap(TocsinError):
    """A shard map that cannot be applied."""

    code = "wrong-shard-map"


class ShardEntry(Shard, extra="forbid"):
    """A shard as a file or a request names it."""

    @property
    def shard(self) -> Shard:
        return Shard(**dict(self))


_ENTRIES: Final = TypeAdapter(tuple[ShardEntry, ...], config=ConfigDict(defer_build=True))


def read(document: object) -> tuple[Shard, ...]:
    """Return the shards in a document: a mapping with `shards`.

    Each is a mapping, or an id alone.

    Raises:
        WrongShardMap: it is another document, or a field of a shard is wrong.
    """
    found = read_entries(document, "shards", "shard_id", _ENTRIES, WrongShardMap)
    return tuple(entry.shard for entry in found)


class ShardChange(NamedTuple):
    """A shard that two maps have differently; None: one of them lacks it."""

    before: Shard | None
    after: Shard | None

    @property
    def shard_id(self) -> str:
        shard = self.after or self.before
        return "" if shard is None else shard.shard_id


def changes(before: Iterable[Shard], after: Iterable[Shard]) -> tuple[ShardChange, ...]:
    """Return the shards that two maps have differently, sorted by id."""
    olds, news = ({shard.shard_id: shard for shard in shards} for shards in (before, after))
    return tuple(
        ShardChange(olds.get(shard_id), news.get(shard_id))
        for shard_id in sorted(olds.keys() | news.keys())
        if olds.get(shard_id) != news.get(shard_id)
    )


def draft(shards: Iterable[Shard]) -> ShardsDefined:
    """Return the event of a map; raise WrongShardMap if a shard is wrong."""
    wanted = tuple(sorted(shards, key=lambda shard: shard.shard_id))
    if len(wanted) > MAX_SHARDS:
        raise WrongShardMap(f"shards: {len(wanted):,}, more than {MAX_SHARDS:,}: let a shard have more of the work")
    seen: set[str] = set()
    for shard in wanted:
        if not is_shard_id(shard.shard_id):
            raise WrongShardMap(
                f"shard_id {shard.shard_id[:MAX_TEXT]!r}: must be 1 to 64 lower-case letters, digits, hyphens and underscores, the first a "
                "letter or a digit"
            )
        if shard.shard_id in seen:
            raise WrongShardMap(f"shard_id {shard.shard_id!r} is given twice: give each shard its own")
        seen.add(shard.shard_id)
        texts = (shard.name, *shard.labels, *shard.labels.values())
        if len(shard.labels) > MAX_LABELS or any(len(text) > MAX_TEXT or not text.isprintable() for text in texts):
            raise WrongShardMap(
                f"shard {shard.shard_id}: a name and at most {MAX_LABELS} labels have up to {MAX_TEXT} printable characters each"
            )
    fact = ShardsDefined(shards=wanted)
    if (size := len(fact.encode())) > MAX_MAP_BYTES:
        raise WrongShardMap(
            f"shards: the map has {size:,} bytes, more than {MAX_MAP_BYTES:,}: use fewer or shorter labels"
        )
    return fact


def active(shards: Sequence[Shard]) -> tuple[str, ...]:
    return tuple(sorted(shard.shard_id for shard in shards if shard.state is ShardState.ACTIVE))


def resolve(partition: Partition, shards: Sequence[Shard], input: Mapping[str, JsonValue]) -> tuple[str, ...]:  # noqa: A002
    """Return the ids of the active shards of a partition, sorted."""
    ids = active(shards)
    if partition.all_shards:
        return ids
    if partition.shard_key is not None:
        value = value_of(partition.shard_key, {"input": input})
        return () if value is None or not ids else (shard_of(value, ids),)
    return tuple(shard_id for shard_id in ids if shard_id in partition.named)


def virtual_node(value: str) -> int:
    """Return the virtual node of a value (`concurrency.value_of`), from 0 to 255."""
    return blake2b(value.encode(errors="surrogatepass"), digest_size=8, person=b"tocsin-vnode").digest()[0]


def shard_of(value: str, ids: tuple[str, ...]) -> str:
    """Return the shard of a value among `ids`, which must not be empty."""
    return _owner_of(virtual_node(value), ids)


@lru_cache(4_096)
def _owner_of(node: int, ids: tuple[str, ...]) -> str:
    return max(ids, key=lambda shard_id: (_weight(node, shard_id), shard_id))


def _weight(node: int, shard_id: str) -> bytes:
    return blake2b(shard_id.encode(), digest_size=8, key=node.to_bytes(1), person=b"tocsin-shard").digest()


def unknown(partition: Partition, shards: Sequence[Shard]) -> str | None:
    """Return why a partition cannot be registered with a map; None: it can."""
    known = {shard.shard_id for shard in shards}
    missing = sorted(set(partition.named) - known)
    if missing:
        return f"no shard {shown(missing)} in the shard map ({shown(sorted(known)) or 'it is empty'}): run `tocsin shards apply`"
    if not active(shards):
        return "no shard is active: add one by `tocsin shards apply -f FILE`"
    return None
