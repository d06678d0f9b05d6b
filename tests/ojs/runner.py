"""Play the cases of the public Open Job Spec conformance suite against a server.

It honours all that the cases say, and refuses to play a case with a word that it does not know. The suite's
own runner leaves out more: it sends nothing where a `raw_body` is to be sent, and does not look at `exclusive_claim` and
`equality`, at a body that is no JSON, or at an expectation that is empty. Beyond the cases, every answer must name the
version and be of the specification's media type (ojs-http-binding §4).
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from .expectations import MISSING, Mismatch, UnknownForm, at, check

SUITES: Final = Path(__file__).parent / "suites"
MEDIA_TYPE: Final = "application/openjobspec+json"
_REFERENCE: Final = re.compile(r"\{\{steps\.([^.]+)\.response\.body(?:\.([^}]+))?\}\}")
_STEP: Final = frozenset(
    {
        *("id", "action", "intent", "description", "path", "headers", "body", "raw_body"),
        *("delay_ms", "duration_ms", "parallel_with", "captures", "assertions"),
    }
)
_ASSERTIONS: Final = frozenset({"status", "body", "headers", "exclusive_claim", "equality"})


def _queues() -> Iterator[str]:
    for path in SUITES.rglob("*.json"):
        for names in re.findall(r'"queues?":\s*(\[[^]]*\]|"[^"]*")', path.read_text()):
            yield from re.findall(r'"([a-z0-9][a-z0-9.-]*)"', names)


QUEUES: Final = frozenset(_queues())
"""Every queue that the suite names."""


@dataclass(frozen=True)
class Case:
    """One file of the suite."""

    file: str
    id: str
    name: str
    steps: Sequence[Mapping[str, Any]]

    @property
    def label(self) -> str:
        """The id alone is not unique; with the name it is."""
        return f"{self.id}-{self.name}"

    @property
    def waits(self) -> float:
        """Seconds that it only waits."""
        return sum(map(_pause, self.steps))


def cases() -> Iterator[Case]:
    """Every case that is kept here."""
    for path in sorted(SUITES.rglob("*.json")):
        written = json.loads(path.read_text())
        if written.get("setup") or written.get("teardown"):
            raise UnknownForm(f"{path}: `setup` or `teardown`")
        yield Case(str(path.relative_to(SUITES)), written["test_id"], written["name"], written["steps"])


@dataclass
class Play:
    """One pass through a case."""

    client: httpx.AsyncClient
    answers: dict[str, Any] = field(default_factory=dict)

    async def run(self, case: Case) -> list[str]:
        """Return the mismatches; after a failed step, no further step runs."""
        for together in _batches(case.steps):
            found = await asyncio.gather(*(self._step(step) for step in together))
            if faults := [fault for faults in found for fault in faults]:
                return faults
        return []

    async def _step(self, step: Mapping[str, Any]) -> list[str]:
        wanted = step.get("assertions", {})
        if unknown := (set(step) - _STEP) | (set(wanted) - _ASSERTIONS):
            raise UnknownForm(f"{step['id']}: {', '.join(sorted(unknown))}")
        await asyncio.sleep(_pause(step))
        faults = []
        for what, judge in self._judged(step, wanted, await self._asked(step)):
            try:
                judge()
            except Mismatch as mismatch:
                faults.append(f"{step['id']} ({step['intent']}), {what}: {mismatch}")
        return faults

    async def _asked(self, step: Mapping[str, Any]) -> httpx.Response | None:
        if step["action"] in {"WAIT", "ASSERT"}:
            return None
        content = step.get("raw_body")
        if content is None and "body" in step:
            content = json.dumps(self._filled(step["body"]))
        headers = (
            {"Content-Type": MEDIA_TYPE, **step.get("headers", {})} if content is not None else step.get("headers")
        )
        answer = await self.client.request(step["action"], self._text(step["path"]), content=content, headers=headers)
        self.answers[step["id"]] = _json(answer)
        return answer

    def _judged(
        self, step: Mapping[str, Any], wanted: Mapping[str, Any], answer: httpx.Response | None
    ) -> Iterator[tuple[str, Any]]:
        if answer is not None:
            yield "status", lambda: check(_status(wanted.get("status", {"$in": [200, 201]})), answer.status_code)
            if answer.request.url.path.startswith("/ojs/"):
                yield "the version", lambda: check("1.0", answer.headers.get("OJS-Version", MISSING))
                yield "the media type", lambda: check(MEDIA_TYPE, answer.headers.get("Content-Type", MISSING))
            for name, want in wanted.get("headers", {}).items():
                yield name, lambda name=name, want=want: check(want, answer.headers.get(name, MISSING))
            body = self.answers[step["id"]]
            for path, want in step.get("captures", {}).items():
                yield path, lambda want=want: check("exists", at(want, body))
            yield from self._of_body(wanted.get("body", {}), body)
        if claim := wanted.get("exclusive_claim"):
            yield "exclusive_claim", lambda: self._claimed_once(claim)
        for path, want in wanted.get("equality", {}).items():
            one = path.removeprefix("$.")
            yield path, lambda one=one, want=want: check_same(self._filled("{{" + one + "}}"), self._filled(want))

    def _of_body(self, wanted: Mapping[str, Any], body: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - JSON
        for path, want in wanted.items():
            if path == "$or":
                yield path, lambda want=want: self._either(want, body)
            else:
                where = self._text(path)
                yield where, lambda where=where, want=want: check(self._filled(want), at(where, body))

    def _either(self, alternatives: Sequence[Mapping[str, Any]], body: Any) -> None:  # noqa: ANN401 - JSON
        faults = []
        for one in alternatives:
            try:
                if one == {"$empty": True}:
                    check({"$exists": False}, body)
                else:
                    for _, judge in self._of_body(one, body):
                        judge()
            except Mismatch as mismatch:
                faults.append(str(mismatch))
            else:
                return
        raise Mismatch(f"none of the alternatives holds: {'; '.join(faults)}")

    def _claimed_once(self, claim: Mapping[str, Any]) -> None:
        job, fetched = self._filled(claim["job_id"]), [self._filled(one) for one in claim["fetches"]]
        got = [sum(one["id"] == job for one in jobs) for jobs in fetched]
        if sorted(got) != [0] * (len(got) - 1) + [1] or sum(map(len, fetched)) != 1:
            raise Mismatch(f"wanted one fetch to have the job, and the others nothing: {fetched}")

    def _filled(self, written: Any) -> Any:  # noqa: ANN401 - JSON
        """Fill earlier answers into a template: unchanged if it is the whole template, else as text."""
        if isinstance(written, dict):
            return {key: self._filled(value) for key, value in written.items()}
        if isinstance(written, list):
            return [self._filled(value) for value in written]
        if isinstance(written, str):
            whole = _REFERENCE.fullmatch(written)
            return self._referred(whole) if whole else self._text(written)
        return written

    def _text(self, written: str) -> str:
        return _REFERENCE.sub(lambda reference: str(self._referred(reference)), written)

    def _referred(self, reference: re.Match[str]) -> Any:  # noqa: ANN401 - JSON
        step, path = reference.groups()
        found = self.answers.get(step, MISSING)
        found = at(path, found) if path else found
        if found is MISSING:
            raise Mismatch(f"nothing was answered at {reference[0]}")
        return found


def check_same(one: object, other: object) -> None:
    """Two answers must be the same.

    Raises:
        Mismatch: they are not.
    """
    if one != other:
        raise Mismatch(f"{one} is not {other}")


async def played(case: Case, client: httpx.AsyncClient) -> list[str]:
    """Reset the server, play a case, and return its faults."""
    (await client.post("/dev/reset")).raise_for_status()
    try:
        return await Play(client).run(case)
    except Mismatch as mismatch:
        return [str(mismatch)]


def _batches(steps: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The steps in order; those that name one another as parallel are one batch."""
    batches: list[list[Mapping[str, Any]]] = []
    for step in steps:
        if batches and any(step.get("parallel_with") == other["id"] for other in batches[-1]):
            batches[-1].append(step)
        else:
            batches.append([step])
    return batches


def _pause(step: Mapping[str, Any]) -> float:
    """Seconds before a step."""
    return float(step.get("delay_ms", 0) + step.get("duration_ms", 0)) / 1000


def _json(answer: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    try:
        return answer.json()
    except ValueError:
        return MISSING


def _status(want: Any) -> Any:  # noqa: ANN401 - JSON
    """`one_of:400,422` is how some cases write a choice."""
    if isinstance(want, str) and want.startswith("one_of:"):
        return {"$in": [int(one) for one in want.removeprefix("one_of:").split(",")]}
    return want
