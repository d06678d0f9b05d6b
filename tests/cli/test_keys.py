"""`tocsin keys`, and `tocsin audit --public-key` over the log and over an export, also with the example for strangers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import World
from tests.stages.world import World as Stages
from tocsin.archive.checkpoints import CheckpointStore
from tocsin.archive.signing_keys import PublicKey, SigningKey
from tocsin.stages.notary import Notary
from tocsin.subjects import Bucket, Stream, checkpoint_page

EXAMPLE = Path(__file__).parents[2] / "examples/verify_log.py"


@pytest.fixture
def keys(world: World, tmp_path: Path) -> tuple[str, str]:
    """The files of a private and a public key, as the commands write them."""
    private, public = tmp_path / "notary.pem", tmp_path / "notary.pub"
    public.write_text(world.call("keys", "create", str(private)).out)
    return str(private), str(public)


@pytest.fixture
def signed(world: World, keys: tuple[str, str]) -> World:
    """Three signed definitions of jobs, in two checkpoints."""
    stages = Stages()
    world.play(stages)

    key = SigningKey.from_pem(Path(keys[0]).read_text())

    async def sign() -> None:
        notary = Notary(
            world.stored,
            CheckpointStore(world.projections),
            stages.elect("notary"),
            world.clock,
            key,
            installation="0123456789abcdef",
            max_messages=2,
        )
        for name in "abc":
            await stages.define({"name": name, "function": "f"})
        for stream in (Stream.LEDGER, Stream.LOG):
            await notary.run_once(stream, world.clock.now())

    world.do(sign())
    return world


def found(world: World, *args: str) -> list[str]:
    """The entities of the violations of an audit, which exits with 1 if there are any."""
    result = world.call("audit", *args, "-o", "json")
    entities = [v["entity"] for v in result.json["violations"] if v["invariant"] == "SIGNED"]
    assert result.code == (1 if result.json["violations"] else 0)
    return entities


def test_key_is_created_once_and_shown(world: World, keys: tuple[str, str]) -> None:
    private, public = keys
    assert Path(private).stat().st_mode & 0o777 == 0o600
    PublicKey.from_pem(Path(public).read_text())
    assert world.call("keys", "show", private).out == Path(public).read_text()
    before = Path(private).read_text()
    assert world.call("keys", "create", private, "-o", "json").failure == (2, "key-exists")
    assert Path(private).read_text() == before


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"-----BEGIN PUBLIC KEY-----\n\n-----END PUBLIC KEY-----\n"])
def test_file_without_a_key_is_refused(world: World, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "file"
    code = "unreadable-file" if content in {None, b"\xff"} else "invalid-key"
    if content is not None:
        file.write_bytes(content)
    assert world.call("keys", "show", str(file), "-o", "json").failure == (2, code)
    assert world.call("audit", "--public-key", str(file), "-o", "json").failure == (2, code)


def test_signed_log_is_proven(signed: World, keys: tuple[str, str]) -> None:
    result = signed.call("audit", "--public-key", keys[1])
    assert result.code == 0, result.out
    assert "LEDGER is signed up to sequence 3 by checkpoint 2" in " ".join(result.out.split())


def test_removed_message_is_named(signed: World, keys: tuple[str, str]) -> None:
    signed.do(signed.commits.reader._log.purge(0, upto=1))
    assert found(signed) == []
    assert found(signed, "--public-key", keys[1]) == ["LEDGER 1–2"]
    assert "1 message removed" in " ".join(signed.call("audit", "--public-key", keys[1]).out.split())


def test_another_key_proves_nothing(signed: World, tmp_path: Path) -> None:
    other = tmp_path / "other.pub"
    other.write_text(SigningKey.generate().public.as_pem())
    assert found(signed, "--public-key", str(other))[:2] == ["checkpoint 1 of LEDGER", "checkpoint 2 of LEDGER"]


def test_replaced_key_counts_beside_its_successor(signed: World, keys: tuple[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other.pub"
    other.write_text(SigningKey.generate().public.as_pem())
    assert found(signed, "--public-key", str(other), "--public-key", keys[1]) == []


def test_damaged_checkpoints_are_reported(signed: World, keys: tuple[str, str]) -> None:
    signed.do(signed.projections.put(Bucket.CHECKPOINTS, checkpoint_page(Stream.LEDGER, 1), b"x"))
    result = signed.call("audit", "--public-key", keys[1], "-o", "json")
    assert result.failure == (1, "checkpoint-damaged")


@pytest.mark.parametrize("option", ["--job", "--since", "--until"])
def test_part_of_the_log_is_not_verified(signed: World, keys: tuple[str, str], option: str) -> None:
    value = "a" if option == "--job" else "2020-01-01T00:00:00Z"
    result = signed.call("audit", "--public-key", keys[1], option, value, "-o", "json")
    assert result.failure == (2, "conflicting-options")


@pytest.fixture
def export(signed: World, tmp_path: Path) -> Path:
    file = tmp_path / "log.jsonl"
    assert signed.call("events", "export", "--out", str(file)).code == 0
    return file


def example(public: str, file: Path) -> tuple[int, str]:
    result = subprocess.run([sys.executable, EXAMPLE, public, file], capture_output=True, text=True, check=False)
    assert not result.stderr
    return result.returncode, result.stdout


def test_export_is_proven_without_the_installation(world: World, keys: tuple[str, str], export: Path) -> None:
    world.reachable = False
    assert found(world, "--file", str(export), "--public-key", keys[1]) == []
    code, text = example(keys[1], export)
    assert (code, text.splitlines()[-1]) == (0, "proven: unchanged")
    ledger, log, _ = text.splitlines()
    assert ledger.startswith("LEDGER: up to 3, checkpoint 2, signed ")
    assert log == "LOG: nothing is signed (0 newer messages are not proven)"  # a stranger sees that a stream is missing


def test_export_stays_readable_for_replay(world: World, export: Path) -> None:
    assert world.call("events", "replay", "--file", str(export)).code == 0


def edit(lines: list[dict[str, Any]], change: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    messages = [line for line in lines if line.get("stream") == "LEDGER"]
    others = [line for line in lines if "sequence" not in line]
    change(messages)
    return [*others[:-1], *messages, others[-1]]


CHANGES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "changed": lambda messages: messages[1].update(body="{}"),
    "removed": lambda messages: messages.pop(1),
    "time": lambda messages: messages[0].update(time="2020-01-01T00:00:00Z"),
    "header": lambda messages: messages[0].setdefault("headers", {}).update(a="b"),
    "swapped": lambda messages: messages[0].update(body=messages[1]["body"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_export_is_found_although_its_trailer_fits(
    world: World, keys: tuple[str, str], export: Path, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    from hashlib import sha256  # noqa: PLC0415 - only the forger needs it

    lines = edit([json.loads(line) for line in export.read_text().splitlines()], change)
    count = sum("sequence" in line for line in lines)
    encoded = [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines[:-1]]
    trailer = lines[-1] | {"messages": count, "sha256": sha256(b"".join(encoded)).hexdigest()}
    export.write_bytes(b"".join(encoded) + json.dumps(trailer).encode() + b"\n")

    assert found(world, "--file", str(export), "--public-key", keys[1]) == ["LEDGER 1–2"]
    code, text = example(keys[1], export)
    assert code == 1
    assert "LEDGER 1-2: not as it was signed" in text


def test_example_finds_an_export_without_checkpoints(world: World, keys: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    world.call("events", "export", "--out", str(file))
    assert example(keys[1], file)[0] == 1


def test_export_without_checkpoints_of_a_stream_is_found(keys: tuple[str, str], export: Path) -> None:
    kept = [line for line in export.read_text().splitlines() if not line.startswith('{"checkpoint"')]
    log = '{"stream":"LOG","sequence":1,"time":"2020-01-01T00:00:00Z","subject":"x","body":""}'
    checkpoints = [line for line in export.read_text().splitlines() if line.startswith('{"checkpoint"')]
    export.write_text("\n".join([kept[0], *checkpoints, *kept[1:-1], log, kept[-1]]) + "\n")
    code, text = example(keys[1], export)
    assert (code, "LOG: no checkpoint of this key covers its 1 messages" in text) == (1, True)
    export.write_text("\n".join(kept) + "\n")
    code, text = example(keys[1], export)
    assert (code, "LEDGER: no checkpoint of this key covers its 3 messages" in text) == (1, True)


def test_partial_export_is_refused(signed: World, keys: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "part.jsonl"
    signed.call("events", "export", "--job", "a", "--out", str(file))
    result = signed.call("audit", "--file", str(file), "--public-key", keys[1], "-o", "json")
    assert result.failure == (2, "partial-export")


def test_old_messages_without_checkpoints_are_a_violation(signed: World, keys: tuple[str, str]) -> None:
    # The in-memory log stores at its own, old time, and an audit of the log judges by the time of its run.
    signed.do(signed.projections.remove(Bucket.CHECKPOINTS, checkpoint_page(Stream.LEDGER, 1)))
    assert found(signed, "--public-key", keys[1]) == ["LEDGER 1–3"]
