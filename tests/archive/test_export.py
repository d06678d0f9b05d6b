"""An export is the log, byte for byte, and nothing less is taken for one."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.archive.export import AlteredExportError, CutOffError, ExportError, Manifest, open_export, write
from tocsin.archive.stream_reader import Selection
from tocsin.ports import Extent, StoredMessage
from tocsin.subjects import Stream

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
EXTENTS = {
    Stream.LEDGER: Extent(1, 7, 7),
    Stream.INPUTS: Extent(1, 3, 3),
    Stream.REQUESTS: Extent(2, 2, 1),
    Stream.REPORTS: Extent(2, 9, 5),
    Stream.LOG: Extent(3, 90, 60),
}
MANIFEST = Manifest("0123456789abcdef", "tocsin", "1.2.3", Selection(job="a.job", since=NOON), EXTENTS)
MESSAGES = [
    StoredMessage(Stream.LEDGER, 1, NOON, "ledger.a_job.due", {}, b'{"job": "a.job",\n "naive": "na\xc3\xafve"}'),
    StoredMessage(Stream.LOG, 3, NOON + timedelta(microseconds=1), "trigger.a", {"Nats-Msg-Id": "x"}, b"\xff\x00"),
    StoredMessage(Stream.LOG, 4, NOON, "report.a.b", {"Ünusual": "\udcff"}, b""),
]

messages = st.builds(
    StoredMessage,
    stream=st.sampled_from(Stream),
    sequence=st.integers(1, 2**53),
    time=st.datetimes(timezones=st.just(UTC)),
    subject=st.text(),
    headers=st.dictionaries(st.text(), st.text()),
    body=st.binary() | st.text().map(str.encode),
)


def written(of: Sequence[StoredMessage] = MESSAGES) -> bytes:
    async def all_of_them() -> AsyncIterator[StoredMessage]:
        for message in of:
            yield message

    out = BytesIO()
    asyncio.run(write(out, MANIFEST, all_of_them()))
    return out.getvalue()


def read(path: Path) -> tuple[Manifest, list[StoredMessage]]:
    with open_export(path) as export:
        return export.manifest, list(export.messages)


@given(st.lists(messages, max_size=5))
def test_every_written_export_is_read_back(tmp_path_factory: pytest.TempPathFactory, of: list[StoredMessage]) -> None:
    path = tmp_path_factory.getbasetemp() / "export.jsonl"
    path.write_bytes(written(of))
    assert read(path) == (MANIFEST, of)


def test_an_export_may_be_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_bytes(gzip.compress(written()))
    assert read(path) == (MANIFEST, MESSAGES)


def test_it_is_read_from_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_bytes(written())
    with path.open("rb") as pipe, open_export(Path("-"), pipe) as export:
        assert list(export.messages) == MESSAGES


def test_each_line_is_a_plain_json_object() -> None:
    manifest, first, second, _, trailer = (json.loads(line) for line in written().splitlines())
    assert (manifest["tocsin"], manifest["installation"], manifest["job"]) == ("export", "0123456789abcdef", "a.job")
    assert manifest["streams"]["LOG"] == {"first": 3, "last": 90, "messages": 60}
    assert json.loads(first["body"]) == {"job": "a.job", "naive": "naïve"}
    assert second["body_base64"] == "/wA="
    assert (trailer["messages"], trailer["streams"]) == (
        3,
        {"LEDGER": 1, "INPUTS": 0, "REQUESTS": 0, "REPORTS": 0, "LOG": 2},
    )


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    whole, path = written(), tmp_path / "export"
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ExportError) as refused:
            read(path)
        assert isinstance(refused.value, CutOffError), (length, refused.value)


def test_truncated_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "export.gz"
    path.write_bytes(gzip.compress(written())[:-20])
    with pytest.raises(CutOffError):
        read(path)


def test_a_line_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_bytes(written().replace(b"report.a.b", b"report.a.c"))
    with pytest.raises(AlteredExportError):
        read(path)


def test_a_line_that_was_taken_out_is_noticed(tmp_path: Path) -> None:
    lines, path = written().splitlines(keepends=True), tmp_path / "export"
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    with pytest.raises(AlteredExportError):
        read(path)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (b"", "truncated-export", None),
        (b"{}\n", "invalid-export", 1),
        (b"[]\n", "invalid-export", 1),
        (b"hello\n", "invalid-export", 1),
        (b'{"tocsin": "export", "format": 1}\n', "invalid-export", 1),
        (b'{"tocsin": "export", "format": 2}\n', "unknown-export-format", 1),
        (written()[:-1] + b"\nmore\n", "altered-export", None),
        (written().replace(b'"sequence":3,', b""), "invalid-export", 3),
        (written().replace(b'{"stream":"LOG"', b'["stream","LOG"', 1), "invalid-export", 3),
    ],
)
def test_file_that_is_not_an_export_is_refused(text: bytes, code: str, line: int | None, tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_bytes(text)
    with pytest.raises(ExportError) as caught:
        read(path)
    assert (caught.value.code, caught.value.line) == (code, line)
