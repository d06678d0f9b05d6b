"""Checks of a worker's report before a stage decides on it.

A worker may store any message under any subject of reports. It has only the proofs of the claims whose tasks it received. The matcher
makes a proof for each claim (`ids.claim_proof`), so that a former holder of an attempt says nothing in the name of the present one.
"""

from hmac import compare_digest

from .. import subjects
from ..domain import ids
from ..domain.events import Message, Recorded, Report
from ..subjects import ReportSubject


def authentic_report(recorded: Recorded[Message], key: bytes) -> Report | None:
    """Return the report of a stage, or of the worker of a claim.

    None: the message does not prove that it is one. Ids and sequences can be guessed; the proof cannot. The subject must be
    that of the report, because readers choose reports by subject.
    """
    report = recorded.message
    if not isinstance(report, Report) or report.proof is None:
        return None
    proof = ids.claim_proof(key, report.execution_id, report.step, report.attempt, report.claim)
    is_authentic = compare_digest(report.proof.encode(), proof.encode())
    return report if is_authentic and recorded.subject == subjects.subject_of(report) else None


def authentic_subject(subject: str, key: bytes) -> ReportSubject | None:
    """Return the content of a report's subject, if its publisher has the claim."""
    reported = subjects.parse_report(subject)
    if reported is None:
        return None
    proof = ids.claim_proof(key, reported.execution_id, reported.step, reported.attempt, reported.claim)
    return reported if compare_digest(reported.seal.encode(), ids.seal(proof, reported.job).encode()) else None
