"""Verify an export of the log against its checkpoints, without Tocsin.

    python verify_log.py notary.pub log.jsonl.gz          (needs: pip install cryptography)

Prints each range that was changed and exits 1, or prints how far the log is proven and exits 0. Messages after the newest
checkpoint are not proven: compare the printed number and time with what you know.
"""

import gzip
import json
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key


class Chain:
    """The checkpoints of one stream; all of them come before all messages."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.previous, self.at, self.sequence, self.unsigned = "", 0, 0, 0

    def add(self, text: str, checkpoint: dict[str, Any]) -> Iterator[str]:
        """Add the next checkpoint, whose signature is right."""
        number, first = (self.parts[-1]["number"] + 1, self.parts[-1]["last"] + 1) if self.parts else (1, 1)
        if (checkpoint["number"], checkpoint["first"], checkpoint["previous"]) != (number, first, self.previous):
            yield f"{checkpoint['stream']} checkpoint {checkpoint['number']}: it does not follow the checkpoint before"
        self.previous = blake2b(text.encode(), digest_size=32).hexdigest()
        self.parts.append({**checkpoint, "running": blake2b(digest_size=32), "found": 0})

    def take(self, message: dict[str, Any]) -> Iterator[str]:
        """Add a message to the digest of its range."""
        if message["sequence"] <= self.sequence:
            yield f"{message['stream']} {message['sequence']}: it comes after {self.sequence}"
        self.sequence = message["sequence"]
        while self.at < len(self.parts) and self.sequence > self.parts[self.at]["last"]:
            self.at += 1
        if self.at < len(self.parts):
            self.parts[self.at]["running"].update(encoded(message))
            self.parts[self.at]["found"] += 1
        else:
            self.unsigned += 1

    def finish(self, stream: str) -> Iterator[str]:
        """Compare the digests."""
        if self.unsigned and not self.parts:
            yield f"{stream}: no checkpoint of this key covers its {self.unsigned} messages"
        for part in self.parts:
            if part["running"].hexdigest() != part["digest"]:
                found = f"{part['found']} messages, {part['messages']} were signed"
                yield f"{part['stream']} {part['first']}-{part['last']}: not as it was signed ({found})"


def encoded(message: dict[str, Any]) -> bytes:
    """Return two netstrings: the head of a message (a JSON array) and its body."""
    head = [message["sequence"], message["time"], message["subject"], message.get("headers", {})]
    head_bytes = json.dumps(head, separators=(",", ":"), sort_keys=True).encode()
    body = b64decode(message["body_base64"]) if "body_base64" in message else message["body"].encode()
    return b"%d:%b,%d:%b," % (len(head_bytes), head_bytes, len(body), body)


def problems(key: Ed25519PublicKey, lines: Iterable[str], chains: dict[str, Chain]) -> Iterator[str]:
    """Yield every problem, and fill the chains of the streams."""
    for record in map(json.loads, lines):
        if "checkpoint" in record:
            text = record["checkpoint"]
            try:
                key.verify(b64decode(record["signature"]), text.encode())
            except (InvalidSignature, ValueError):
                yield f"the signature is not of this key: {text!r}"
                continue
            checkpoint = json.loads(text)
            yield from chains[checkpoint["stream"]].add(text, checkpoint)
        elif record.get("stream") in chains:
            yield from chains[record["stream"]].take(record)
    for stream, chain in chains.items():
        yield from chain.finish(stream)
    if not any(chain.parts for chain in chains.values()):
        yield "the file holds no checkpoint of this key: nothing is proven"


def main(key_file: str, export_file: str) -> int:
    """Print the outcome; return the exit code."""
    key = load_pem_public_key(Path(key_file).read_bytes())
    if not isinstance(key, Ed25519PublicKey):
        sys.exit("the key is no public key of Ed25519")
    chains = {"LEDGER": Chain(), "LOG": Chain()}
    with gzip.open(export_file, "rt") if export_file.endswith(".gz") else Path(export_file).open() as export:
        found = list(problems(key, export, chains))
    for stream, chain in chains.items():
        text = "{stream}: up to {last}, checkpoint {number}, signed {signed}, installation {installation}"
        signed = text.format(**chain.parts[-1]) if chain.parts else f"{stream}: nothing is signed"
        print(f"{signed} ({chain.unsigned} newer messages are not proven)")
    print("\n".join(found) or "proven: unchanged")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
