"""An index of sequences by subject.

A tree of tokens, which finds a scope without a scan.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    children: dict[str, "_Node"] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)


class SubjectTree:
    """Sequences in ascending order for each subject."""

    def __init__(self) -> None:
        """Start empty."""
        self._root = _Node()

    def add(self, subject: str, sequence: int) -> None:
        """Add a sequence, which must be greater than all before."""
        node = self._root
        for token in subject.split("."):
            node = node.children.setdefault(token, _Node())
        node.sequences.append(sequence)

    def remove(self, subject: str, sequence: int) -> None:
        """Remove a sequence."""
        for sequences in self.each(subject):
            sequences.remove(sequence)

    def each(self, filter_subject: str) -> Iterator[list[int]]:
        """Yield the sequences of each matching subject that has any."""
        yield from _walk(self._root, filter_subject.split("."), 0)

    def last(self, filter_subject: str) -> int:
        """Return the greatest sequence of all matching subjects; 0 if none matches."""
        return max((sequences[-1] for sequences in self.each(filter_subject)), default=0)


def _walk(node: _Node, tokens: list[str], at: int) -> Iterator[list[int]]:
    if at == len(tokens):
        if node.sequences:
            yield node.sequences
        return
    if tokens[at] == ">":
        for child in node.children.values():
            yield from _all(child)
        return
    if tokens[at] == "*":
        for child in node.children.values():
            yield from _walk(child, tokens, at + 1)
    elif tokens[at] in node.children:
        yield from _walk(node.children[tokens[at]], tokens, at + 1)


def _all(node: _Node) -> Iterator[list[int]]:
    if node.sequences:
        yield node.sequences
    for child in node.children.values():
        yield from _all(child)
