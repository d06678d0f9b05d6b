"""Checkpoints prove the messages that they cover: any single change is found."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.archive.checkpoints import (
    PAGE,
    Checkpoint,
    CheckpointDamaged,
    CheckpointStore,
    Page,
    RangeDigest,
    SignedCheckpoint,
    encoded,
)
from tocsin.archive.signing_keys import KeyRefused, PublicKey, SigningKey
from tocsin.ports import SequenceConflict, StoredMessage
from tocsin.services.log_verification import LogVerification, Proof
from tocsin.subjects import Bucket, Stream, checkpoint_page
from tocsin.testing import InMemoryProjections, ManualClock

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = SigningKey(bytes(32))
OTHER = SigningKey(b"1" * 32)
LOG = [
    StoredMessage(
        Stream.LOG, n, NOON + timedelta(seconds=n), f"execution.j.{n}.completed", {"Nats-Msg-Id": f"{n}"}, b"{}"
    )
    for n in range(1, 31)
]


def signed(
    messages: Sequence[StoredMessage], *, of: int = 10, key: SigningKey = KEY, installation: str = "i"
) -> list[SignedCheckpoint]:
    """Sign ranges of `of` messages each."""
    chain: list[SignedCheckpoint] = []
    last = 0
    for begin in range(0, len(messages), of):
        digest = RangeDigest()
        for message in messages[begin : begin + of]:
            digest.take(message)
        checkpoint = Checkpoint(
            installation=installation,
            stream=messages[begin].stream,
            number=len(chain) + 1,
            first=last + 1,
            last=digest.last,
            messages=digest.messages,
            digest=digest.hexdigest(),
            previous=chain[-1].digest if chain else "",
            signed=NOON,
        )
        last = digest.last
        chain.append(SignedCheckpoint.sign(checkpoint, key))
    return chain


def verified(
    messages: Sequence[StoredMessage],
    checkpoints: Sequence[SignedCheckpoint],
    *keys: PublicKey,
    now: datetime | None = None,
) -> Proof:
    verification = LogVerification(keys or [KEY.public], checkpoints)
    for message in messages:
        verification.take(message)
    return verification.finish(now)


def entities(proof: Proof) -> list[str]:
    return [finding.entity for finding in proof.findings]


def test_unchanged_log_is_proven() -> None:
    proof = verified(LOG, signed(LOG))
    assert (proof.findings, proof.total) == ((), 0)
    assert any("LOG is signed up to sequence 30 by checkpoint 3" in remark for remark in proof.remarks)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([*LOG[:14], replace(LOG[14], body=b"{ }"), *LOG[15:]], "changed"),
        ([*LOG[:14], replace(LOG[14], headers={}), *LOG[15:]], "changed"),
        ([*LOG[:14], replace(LOG[14], subject="x"), *LOG[15:]], "changed"),
        ([*LOG[:14], replace(LOG[14], time=NOON), *LOG[15:]], "changed"),
        ([*LOG[:14], *LOG[15:]], "1 message removed, of 10 that were signed: 15 "),
        ([*LOG[:12], *LOG[16:]], "4 messages removed, of 10 that were signed: 13–16 "),
        ([*LOG[:10], *LOG[20:]], "10 messages removed, of 10 that were signed: 11–20 "),
    ],
)
def test_range_of_a_change_is_named(messages: list[StoredMessage], reason: str) -> None:
    proof = verified(messages, signed(LOG))
    assert entities(proof) == ["LOG 11–20"]
    assert reason in proof.findings[0].reason


def test_message_in_a_hole_is_named_as_added() -> None:
    held = [message for message in LOG if message.sequence != 15]
    checkpoints = signed(held, of=9)
    assert verified(held, checkpoints).total == 0
    proof = verified(LOG, checkpoints)
    assert [(f.entity, "1 message added" in f.reason) for f in proof.findings] == [("LOG 10–19", True)]


def test_cut_off_log_is_found() -> None:
    assert entities(verified(LOG[:15], signed(LOG))) == ["LOG 11–20", "LOG 21–30"]
    assert entities(verified([], signed(LOG))) == ["LOG 1–10", "LOG 11–20", "LOG 21–30"]


def test_repeated_message_is_found() -> None:
    assert "LOG 5" in entities(verified([*LOG[:20], LOG[4], *LOG[20:]], signed(LOG)))


def test_other_key_proves_nothing() -> None:
    proof = verified(LOG, signed(LOG), OTHER.public, now=NOON + timedelta(hours=1))
    assert entities(proof) == ["checkpoint 1 of LOG", "checkpoint 2 of LOG", "checkpoint 3 of LOG", "LOG 1–30"]
    assert verified(LOG, signed(LOG), OTHER.public, KEY.public).total == 0


def test_missing_checkpoint_is_found() -> None:
    first, _, third = signed(LOG)
    proof = verified(LOG, [first, third])
    assert [(f.entity, "checkpoint 2 is missing" in f.reason) for f in proof.findings] == [("LOG 11–20", True)]


def test_moved_or_forked_checkpoint_is_found() -> None:
    chain = signed(LOG)
    assert entities(verified(LOG, [chain[0], chain[2], chain[1]]))[-1] == "checkpoint 2 of LOG"
    assert entities(verified(LOG, [*chain, chain[2]])) == ["checkpoint 3 of LOG"]
    others = signed([replace(message, body=b"") for message in LOG])
    assert "checkpoint 2 of LOG" in entities(verified(LOG, [others[0], *chain[1:]]))
    foreign = signed(LOG, installation="another")
    assert "checkpoint 2 of LOG" in entities(verified(LOG, [chain[0], *foreign[1:]]))


def test_messages_after_the_last_checkpoint_may_be_young() -> None:
    checkpoints = signed(LOG)[:2]
    assert verified(LOG, checkpoints, now=NOON + timedelta(minutes=5)).total == 0
    late = verified(LOG, checkpoints, now=NOON + timedelta(hours=1))
    assert [(f.entity, "no checkpoint covers 10 messages" in f.reason) for f in late.findings] == [("LOG 21–30", True)]


def test_unreadable_checkpoint_is_found() -> None:
    proof = verified([], [SignedCheckpoint("{}", "")])
    assert entities(proof) == ["checkpoints"]


texts = st.text(max_size=20)
stored = st.builds(
    StoredMessage,
    stream=st.just(Stream.LOG),
    sequence=st.integers(1, 50),
    time=st.datetimes(timezones=st.just(UTC)),
    subject=texts,
    headers=st.dictionaries(texts, texts, max_size=3),
    body=st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
)
logs = st.lists(stored, min_size=1, max_size=20, unique_by=lambda message: message.sequence).map(
    lambda messages: sorted(messages, key=lambda message: message.sequence)
)


@given(logs, st.data())
def test_any_single_change_is_found(messages: list[StoredMessage], data: st.DataObject) -> None:
    checkpoints = signed(messages, of=data.draw(st.integers(1, 8)))
    until = max(message.time for message in messages)
    assert verified(messages, checkpoints, now=until).total == 0
    at = data.draw(st.integers(0, len(messages) - 1))
    other = data.draw(stored.filter(lambda message: message != messages[at]))
    is_free = other.sequence not in {message.sequence for message in messages}
    match data.draw(st.sampled_from(["changed", "removed", *(["added"] if is_free else [])])):
        case "changed":
            # The sequence is that of the place: a stream has each sequence once.
            forged = replace(other, sequence=messages[at].sequence)
            if forged == messages[at]:
                return
            altered = [*messages[:at], forged, *messages[at + 1 :]]
        case "removed":
            altered = [*messages[:at], *messages[at + 1 :]]
        case _:
            if other.sequence > messages[-1].sequence:
                return  # what is stored after the last checkpoint is not signed yet
            altered = sorted([*messages, other], key=lambda message: message.sequence)
    assert verified(altered, checkpoints, now=until).total >= 1


@given(stored, stored)
def test_encoding_is_unambiguous(one: StoredMessage, other: StoredMessage) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)


def pages(count: int) -> tuple[CheckpointStore, InMemoryProjections, list[SignedCheckpoint]]:
    projections = InMemoryProjections(ManualClock())
    store = CheckpointStore(projections)
    chain = [SignedCheckpoint(f"{n}", "") for n in range(count)]

    async def fill() -> None:
        page = await store.newest(Stream.LOG)
        for checkpoint in chain:
            page = await store.append(Stream.LOG, page, checkpoint)

    asyncio.run(fill())
    return store, projections, chain


@pytest.mark.parametrize("count", [0, 1, PAGE, PAGE + 1, 5 * PAGE + 3])
async def test_checkpoints_are_read_back_in_order(count: int) -> None:
    store, _, chain = await asyncio.to_thread(pages, count)
    assert [checkpoint async for checkpoint in store.read(Stream.LOG)] == chain
    assert [checkpoint async for checkpoint in store.read(Stream.LEDGER)] == []
    newest = await store.newest(Stream.LOG)
    assert newest.checkpoints[-1:] == tuple(chain[-1:])
    assert newest.number == max(1, -(-count // PAGE))


@pytest.mark.parametrize("count", [0, 1, PAGE])
async def test_second_notary_is_refused(count: int) -> None:
    store, _, _ = await asyncio.to_thread(pages, count)
    page = await store.newest(Stream.LOG)
    await store.append(Stream.LOG, page, SignedCheckpoint("mine", ""))
    with pytest.raises(SequenceConflict):
        await store.append(Stream.LOG, page, SignedCheckpoint("theirs", ""))


@pytest.mark.parametrize("body", [b"", b"1", b"[1]", b"\xff", b"[" * 100_000, b'[{"checkpoint": 1, "signature": ""}]'])
async def test_damaged_page_is_refused(body: bytes) -> None:
    projections = InMemoryProjections(ManualClock())
    await projections.put(Bucket.CHECKPOINTS, checkpoint_page(Stream.LOG, 1), body)
    with pytest.raises(CheckpointDamaged):
        await CheckpointStore(projections).newest(Stream.LOG)


async def test_page_fits_into_a_message() -> None:
    content = Checkpoint(
        installation="0" * 16,
        stream=Stream.LEDGER,
        number=2**53,
        first=2**53,
        last=2**53,
        messages=10_000,
        digest="0" * 64,
        previous="0" * 64,
        signed=NOON + timedelta(microseconds=1),
    )
    checkpoint, projections = SignedCheckpoint.sign(content, KEY), InMemoryProjections(ManualClock())
    await CheckpointStore(projections).append(Stream.LOG, Page(1, (checkpoint,) * (PAGE - 1), 0), checkpoint)
    stored = await projections.get(Bucket.CHECKPOINTS, checkpoint_page(Stream.LOG, 1))
    assert stored is not None
    assert len(stored[0]) < 65_536


def test_keys_are_those_of_other_programs(tmp_path: Path) -> None:
    key = SigningKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_text(key.as_pem())
    public.write_text(key.public.as_pem())
    program = """
import sys
from base64 import b64encode
from pathlib import Path
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
key = load_pem_private_key(Path(sys.argv[1]).read_bytes(), None)
signature = key.sign(b"text")
load_pem_public_key(Path(sys.argv[2]).read_bytes()).verify(signature, b"text")
print(b64encode(signature).decode())
"""
    result = subprocess.run(
        [sys.executable, "-c", program, private, public], capture_output=True, text=True, check=True
    )
    assert PublicKey.from_pem(public.read_text()).has_signed("text", result.stdout.strip())
    assert SigningKey.from_pem(private.read_text()).sign("text") == result.stdout.strip()


@pytest.mark.parametrize("signature", ["", "x", "AAAA", "Ä", OTHER.sign("text"), KEY.sign("another text")])
def test_other_signatures_do_not_count(signature: str) -> None:
    assert not KEY.public.has_signed("text", signature)


@pytest.mark.parametrize(
    "text",
    ["", "x", KEY.as_pem(), "-----BEGIN PUBLIC KEY-----\nÄ\n-----END PUBLIC KEY-----", "-----BEGIN PUBLIC KEY-----"],
)
def test_other_text_is_no_public_key(text: str) -> None:
    with pytest.raises(KeyRefused):
        PublicKey.from_pem(text)
