"""Jobs of CronJob manifests (`batch/v1` and `batch/v1beta1`).

The controller reads a schedule as robfig/cron does: a time that the clocks skip does not run, and a time that they repeat
runs twice. A run that the controller missed while it was away starts late, and only the newest.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from ...domain.definition import DefinitionError, shorten, show
from ...domain.schedule import ScheduleError
from ...domain.schedule.rules import parse_duration
from ..files import yaml_text
from .drafts import IN_TEMPLATE, UNLIMITED, Draft, Draftings
from .findings import Finding
from .pods import Manifest, list_of, mapping_of, report_rest, set_containers, settings_note, text_of, whole_number
from .schedules import FIELDS, ROBFIG, Zone, fields_of, set_clock_changes, set_cron, set_interval, set_timezone

MAX_DOCUMENTS: Final = 5_000
"""The largest number of manifests of a file."""
_OVERLAP: Final = {"Allow": "allow", "Forbid": "skip", "Replace": "cancel_previous"}
_PREFIX: Final = re.compile(r"(?:CRON_)?TZ=(?P<zone>\S+)\s+(?P<rest>.*)", re.DOTALL)
_DEFAULT_BACKOFF: Final = 6
_VERSIONS: Final = frozenset({"batch/v1", "batch/v1beta1"})
_SPEC: Final = frozenset(
    {
        *("schedule", "timeZone", "concurrencyPolicy", "startingDeadlineSeconds", "suspend", "jobTemplate"),
        *("successfulJobsHistoryLimit", "failedJobsHistoryLimit"),
    }
)
_JOB: Final = frozenset(
    {"template", "backoffLimit", "activeDeadlineSeconds", "completions", "parallelism", "ttlSecondsAfterFinished"}
)
_OF_SERVERS: Final = frozenset(
    {"creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"}
)
_CONTENTS: Final = ("objects", "items")
"""Where documents such as OpenShift's templates have other documents."""
_SCHEDULES: Final = ("schedule", "schedules", "cron")
"""Fields with the schedule of other kinds, such as Argo's CronWorkflow."""
_TRUE: Final = frozenset({"yes", "on", "y", "true"})


def read(text: str, source: str, *, zone: Zone, now: datetime) -> Draftings:
    """Return the jobs of the CronJobs in a file, in all its documents and lists."""
    drafted = Draftings(source)
    for place, document in _documents(_parsed(text), source):
        if len(drafted.drafts) + len(drafted.findings) >= MAX_DOCUMENTS:
            said = f"more than {MAX_DOCUMENTS:,} documents: the others are not read; divide the file"
            drafted.add("entry-not-readable", said)
            break
        manifest = mapping_of(document)
        version, kind = text_of(manifest.get("apiVersion")), text_of(manifest.get("kind"))
        if kind == "CronJob" and version in _VERSIONS:
            drafted.drafts.append(_draft(place, manifest, zone, now))
        elif document is not None:
            drafted.findings.append(_skipped(place, kind, version, manifest))
    if not drafted.drafts and not drafted.findings:
        drafted.add("document-skipped", "no document is in this file")
    if any(draft.names_no_zone for draft in drafted.drafts):
        zone.note_in(drafted, "the cluster's kube-controller-manager")
    if note := settings_note(drafted.drafts):
        restricted = "pods run as a user that is not root, without a token of their service account"
        said = f"{restricted}, unless a pod template of the worker says otherwise"
        drafted.add("container-settings", shorten(note, 400))
        drafted.add("pod-restricted", said)
    if drafted.drafts:
        said = f"an attempt is stopped after {UNLIMITED} unless the pod has activeDeadlineSeconds: set `timeout` of each job"
        drafted.add("no-time-limit", said)
    return drafted


def _skipped(place: str, kind: str, version: str, manifest: Mapping[str, Any]) -> Finding:
    inside = [mapping_of(each) for name in _CONTENTS for each in list_of(manifest.get(name))]
    spec = mapping_of(manifest.get("spec"))
    if kind == "CronJob":
        said = f"`apiVersion: {version[:100]}` is no known version of CronJobs: write batch/v1"
    elif kind.endswith("List"):
        said = f"a {kind[:100]} that is inside another, or whose `items` are no list, is not read: write its items as documents"
    elif number := sum(text_of(each.get("kind")) == "CronJob" for each in inside):
        said = f"the {number:,} CronJobs in a {kind[:100]} are not read: fill it in, and import the result (`oc process -f FILE -o yaml`)"
    elif schedule := next((spec[name] for name in _SCHEDULES if spec.get(name)), None):
        said = f"the schedule {show(schedule)} of a {kind[:100]} is not read: write its job by hand"
    else:
        return Finding("document-skipped", f"a {kind[:100] or 'document without a kind'} has no schedule", place)
    return Finding("entry-not-readable", said, place)


def _parsed(text: str) -> list[object]:
    try:
        return yaml_text.parse(text)
    except DefinitionError as error:
        if "{{" not in text:
            raise
        hint = "if the file is a template of Helm, import the output of `helm template`"
        raise DefinitionError(*(replace(each, reason=f"{each.reason}; {hint}") for each in error.problems)) from None


def _documents(documents: list[object], source: str) -> Iterator[tuple[str, object]]:
    for number, document in enumerate(documents, start=1):
        place = source if len(documents) == 1 else f"{source}, document {number}"
        items = mapping_of(document).get("items")
        if isinstance(items, list) and text_of(mapping_of(document).get("kind")).endswith("List"):
            yield from ((f"{place}, items[{index}]", item) for index, item in enumerate(items))
        else:
            yield place, document


def _draft(place: str, manifest: Mapping[str, Any], zone: Zone, now: datetime) -> Draft:
    metadata, spec = mapping_of(manifest.get("metadata")), mapping_of(manifest.get("spec"))
    name, namespace = text_of(metadata.get("name")) or "cronjob", text_of(metadata.get("namespace"))
    draft = Draft(name, place, [f"CronJob {namespace}/{name}" if namespace else f"CronJob {name}"])
    described = Manifest(draft, "spec")
    _set_schedule(draft, spec, zone, now)
    job_template = mapping_of(spec.get("jobTemplate"))
    job = mapping_of(job_template.get("spec"))
    pod = mapping_of(mapping_of(job.get("template")).get("spec"))
    _set_rules(described, spec)
    _set_job(Manifest(draft, "spec.jobTemplate.spec"), job)
    seconds = Manifest(draft, "spec.jobTemplate.spec.template.spec").seconds(pod, "activeDeadlineSeconds")
    draft.fields["timeout"] = f"{seconds}s" if seconds else UNLIMITED
    _set_meta(draft, metadata)
    set_containers(draft, pod, namespace)
    report_rest(draft, "spec", spec, _SPEC)
    report_rest(draft, "spec.jobTemplate", job_template, {"spec", "metadata"})
    report_rest(draft, "spec.jobTemplate.metadata", mapping_of(job_template.get("metadata")), _OF_SERVERS)
    report_rest(draft, "spec.jobTemplate.spec", job, _JOB)
    described_pod = mapping_of(mapping_of(job.get("template")).get("metadata"))
    report_rest(draft, "spec.jobTemplate.spec.template.metadata", described_pod, _OF_SERVERS, instead=IN_TEMPLATE)
    return draft


def _set_schedule(draft: Draft, spec: Mapping[str, Any], default_zone: Zone, now: datetime) -> None:
    written = spec.get("schedule")
    if not isinstance(written, str) or not written.strip():
        draft.add("schedule-not-expressible", "the CronJob has no `schedule`")
        return
    draft.original.append(f"schedule: {written}")
    text, zone = written.strip(), text_of(spec.get("timeZone"))
    if prefix := _PREFIX.fullmatch(text):
        text, zone = prefix["rest"].strip(), zone or prefix["zone"]
    draft.names_no_zone = not zone
    if text.startswith("@every"):
        _set_every(draft, text)
        return
    text = " ".join(text.split())
    if (number := len(fields_of(text))) != len(FIELDS):
        draft.add("schedule-not-expressible", f"`{text}` has {number} fields, and a CronJob has {len(FIELDS)}")
        return
    if set_cron(draft, text, ROBFIG) and set_timezone(draft, zone or default_zone.name):
        fold = "Kubernetes runs it twice when the clocks repeat its time, Tocsin once"
        set_clock_changes(draft, now, {"fold": "both"}, fixed_fold=fold)


def _set_every(draft: Draft, text: str) -> None:
    written = text.removeprefix("@every").strip()
    try:
        interval = parse_duration(written)
    except ScheduleError as error:
        draft.add("schedule-not-expressible", f"`{text}`: {error.problem}")
        return
    # robfig/cron rounds down to whole seconds, and to one second at least.
    seconds = max(1, interval // timedelta(seconds=1))
    set_interval(draft, timedelta(seconds=seconds))


def _set_rules(described: Manifest, spec: Mapping[str, Any]) -> None:
    draft = described.draft
    policy = text_of(spec.get("concurrencyPolicy")) or "Allow"
    if policy in _OVERLAP:
        draft.fields["overlap_policy"] = _OVERLAP[policy]
    else:
        described.lose("concurrencyPolicy", policy)
    if policy == "Forbid":
        draft.add(
            "forbid-retries-later",
            "Kubernetes starts a forbidden run late if it can; `overlap_policy: enqueue` does so too",
        )
    suspend = spec.get("suspend")
    if suspend is True or (isinstance(suspend, str) and suspend.lower() in _TRUE):
        draft.fields["enabled"] = False
    draft.fields["catch_up"] = "once"
    if deadline := described.seconds(spec, "startingDeadlineSeconds"):
        draft.fields["starting_deadline"] = f"{deadline}s"
    elif deadline == 0:
        described.lose("startingDeadlineSeconds", 0)
    for name in ("successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        if name in spec:
            said = f"`{name}: {show(spec[name])}` is a number of Jobs; set `retention`, a time, if the installation's does not fit"
            draft.add("history-limit-not-supported", said)


def _set_job(described: Manifest, job: Mapping[str, Any]) -> None:
    draft = described.draft
    limit = whole_number(job.get("backoffLimit"))
    if limit is None and job.get("backoffLimit") is not None:
        described.lose("backoffLimit", job["backoffLimit"])
    attempts = (_DEFAULT_BACKOFF if limit is None else limit) + 1
    if attempts > 100:  # noqa: PLR2004 - the limit of a job
        described.lose("backoffLimit", limit)
        attempts = 100
    retry: dict[str, Any] = {"max_attempts": attempts}
    if attempts > 1:
        retry |= {"initial_delay": "10s", "multiplier": 2.0, "max_delay": "6m", "jitter": 0.0}
    draft.fields["retry"] = retry
    if seconds := described.seconds(job, "activeDeadlineSeconds"):
        draft.fields["execution_timeout"] = f"{seconds}s"
    if ttl := described.seconds(job, "ttlSecondsAfterFinished"):
        draft.fields["retention"] = f"{ttl}s"
    elif ttl == 0:
        described.lose("ttlSecondsAfterFinished", 0)
    for name in ("completions", "parallelism"):
        if job.get(name) is not None and whole_number(job[name]) != 1:
            said = f"`{name}: {show(job[name])}`: the job has one run at each instant"
            draft.add("parallel-runs-not-supported", said)


def _set_meta(draft: Draft, metadata: Mapping[str, Any]) -> None:
    meta: dict[str, Any] = {}
    for name in ("namespace", "labels", "annotations"):
        value = metadata.get(name)
        if isinstance(value, Mapping):
            items = mapping_of(value).items()
            texts = {key: text_of(each) for key, each in items if "last-applied-configuration" not in key}
            if texts:
                meta[name] = texts
        elif value is not None:
            meta[name] = text_of(value)
    if meta:
        draft.fields["meta"] = {"kubernetes": meta}
