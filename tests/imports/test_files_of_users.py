"""Imports of real files of public repositories.

The repository holds none of them: they belong to others. `samples` has files of our own with the same constructs. `REAL` says where each is, and the jobs that follow from it. To run these tests, put the files
into a folder, under the folders `crontab`, `kubernetes`, `celery` and `airflow`, by any names, and name the folder in
`TOCSIN_TEST_IMPORT_FILES`. Files beside those of `REAL` are imported too.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.imports.given import NOW, registrable
from tocsin.adapters.imports import Kind, import_files
from tocsin.domain.definition import DefinitionError, JobDefinition

FOLDER = os.environ.get("TOCSIN_TEST_IMPORT_FILES")
"""The folder with the files."""
KINDS: Final[tuple[Kind, ...]] = ("crontab", "kubernetes", "celery", "airflow")

pytestmark = pytest.mark.skipif(not FOLDER, reason="TOCSIN_TEST_IMPORT_FILES names no folder")


@dataclass(frozen=True)
class RealFile:
    """A file of a public repository, and the jobs that follow from it."""

    kind: Kind
    repository: str
    """Its name on GitHub."""
    path: str
    commit: str
    licence: str
    digest: str
    """The beginning of its SHA-256."""
    jobs: Mapping[str, str]
    """Each job with its schedule, its time zone, its work and its steps."""
    report: tuple[str, ...]
    """Each line of the report: the line of the file, the job and the code."""


AIRFLOW_BASH: Final = RealFile(
    "airflow",
    "apache/airflow",
    "airflow/example_dags/example_bash_operator.py",
    commit="06532c696cb2da32084559ee8ec511a66dc93df2",
    licence="Apache-2.0",
    digest="8e40f98f385d8a13",
    jobs={
        "example-bash-operator": "0 0 * * * UTC allow run_after_loop<-runme_0+runme_1+runme_2 runme_0 runme_1 runme_2 also_run_this"
    },
    report=(
        "no-time-limit",
        "command-settings",
        ":32 example-bash-operator data-interval",
        ":32 example-bash-operator catch-up-assumed",
        ":32 example-bash-operator empty-step-removed",
        *[":32 example-bash-operator template-not-supported"] * 4,
    ),
)
AIRFLOW_LATEST: Final = RealFile(
    "airflow",
    "apache/airflow",
    "airflow/example_dags/example_latest_only_with_trigger.py",
    commit="325a2af63e33bd58fb0c35184b57eb4c06e873f3",
    licence="Apache-2.0",
    digest="15fdea31bdf009f4",
    jobs={"latest-only-with-trigger": "0 0,4,8,12,16,20 * * * UTC allow latest_only"},
    report=(
        "no-time-limit",
        ":29 latest-only-with-trigger data-interval",
        ":29 latest-only-with-trigger catch-up-assumed",
        *[":29 latest-only-with-trigger empty-step-removed"] * 4,
        ":29 latest-only-with-trigger trigger-rule-not-supported",
        ":29 latest-only-with-trigger operator-needs-handler",
        ":29 latest-only-with-trigger branch-not-supported",
    ),
)
AIRFLOW_LOOP: Final = RealFile(
    "airflow",
    "astronomer/airflow-example-dags",
    "dags/databricks_sample.py",
    commit="83205e58fef3ad4282f8dc4d193f65c41a2c5b4d",
    licence="Apache-2.0",
    digest="5c82cc0c7c097d0d",
    jobs={
        "adb-pipeline": "30 4 * * * UTC allow check_for_file spark_job_one<-check_for_file PostgresOperator<-spark_job_one "
        "spark_job_two<-check_for_file PostgresOperator-2<-spark_job_two spark_job_three<-check_for_file "
        "PostgresOperator-3<-spark_job_three spark_job_four<-check_for_file PostgresOperator-4<-spark_job_four"
    },
    report=(
        "no-time-limit",
        ":68 adb-pipeline data-interval",
        *[":68 adb-pipeline field-not-supported"] * 2,
        ":68 adb-pipeline empty-step-removed",
        ":68 adb-pipeline operator-needs-handler",
        *[
            ":68 adb-pipeline operator-needs-handler",
            ":68 adb-pipeline computed-at-run-time",
            ":68 adb-pipeline operator-needs-handler",
        ]
        * 4,
    ),
)
CELERY_DJANGO: Final = RealFile(
    "celery",
    "testdrivenio/django-celery-beat",
    "project/core/settings.py",
    commit="fec7f6fdfb4d4c9f7046dc0ce46191715097bdab",
    licence="MIT",
    digest="e5ceb50cf0aa4ff7",
    jobs={
        "sample-task": "*/1 * * * * UTC allow function",
        "send-email-report": "* */1 * * * UTC allow function",
    },
    report=("no-time-limit",),
)
CELERY_PERIODIC: Final = RealFile(
    "celery",
    "celery/celery",
    "examples/periodic-tasks/myapp.py",
    commit="1a1a99e9b9c117ce7298d60ab6d1ad60ef07fe65",
    licence="BSD-3-Clause",
    digest="431cd16f1320eedb",
    jobs={"add-every-10": "@every 10s UTC allow function"},
    report=("no-time-limit",),
)
CELERY_SUPERSET: Final = RealFile(
    "celery",
    "apache/superset",
    "docker/pythonpath_dev/superset_config.py",
    commit="00854664001de662cbcf59097cc185306b521849",
    licence="Apache-2.0",
    digest="cc05d5ac2012cda7",
    jobs={
        "reports.scheduler": "* * * * * UTC allow function",
        "reports.prune-log": "10 0 * * * UTC allow function",
    },
    report=(":64 call-not-followed", "no-time-limit"),
)
CRON_DRAGONFLY: Final = RealFile(
    "crontab",
    "DragonFlyBSD/DragonFlyBSD",
    "etc/crontab",
    commit="1de703daf67320d643c7695d9bf7ec54c33d5512",
    licence="BSD-3-Clause",
    digest="d50df5cb0dc21097",
    jobs={
        "atrun": "*/5 * * * * UTC allow command",
        "newsyslog": "0 * * * * UTC allow command",
        "periodic": "1 3 * * * UTC allow command",
        "periodic-2": "15 4 * * 6 UTC allow command",
        "periodic-3": "30 5 1 * * UTC allow command",
        "adjkerntz": "1,31 0-5 * * * UTC allow command",
    },
    report=(
        "system-crontab",
        "no-time-limit",
        "output-not-mailed",
        "command-settings",
        ":12 atrun user-not-supported",
        ":15 newsyslog user-not-supported",
        ":18 periodic user-not-supported",
        ":19 periodic-2 user-not-supported",
        ":20 periodic-3 user-not-supported",
        ":25 adjkerntz user-not-supported",
    ),
)
CRON_MUSHROOM: Final = RealFile(
    "crontab",
    "MushroomObserver/mushroom-observer",
    "config/crontab",
    commit="40eae6a794283a6cd59c0cbd3b134b06d4dcfc60",
    licence="MIT",
    digest="62638085c02431fe",
    jobs={
        "run-rake": "*/5 * * * * UTC allow command",
        "run-script": "*/5 * * * * UTC allow command",
        "run-script-2": "*/6 * * * * UTC allow command",
        "parse-log": "23 * * * * UTC allow command",
        "run-script-3": "13 3 * * * UTC allow command",
        "run-script-4": "43 3 * * * UTC allow command",
        "run-script-5": "13 4 * * * UTC allow command",
        "make-eol-xml": "33 21 * * * UTC allow command",
    },
    report=("no-time-limit", "working-folder", "output-not-mailed", "command-settings"),
)
CRON_NETBSD: Final = RealFile(
    "crontab",
    "NetBSD/src",
    "etc/crontab",
    commit="06ab8923b1a9c0429100455b85217dcb13786cdf",
    licence="BSD-2-Clause",
    digest="329180719b13b76a",
    jobs={
        "daily": "0 2 * * * UTC allow command",
        "weekly": "30 3 * * 6 UTC allow command",
        "monthly": "30 5 1 * * UTC allow command",
    },
    report=("no-time-limit", "output-not-mailed", "command-settings"),
)
KUBERNETES_DESCHEDULER: Final = RealFile(
    "kubernetes",
    "kubernetes-sigs/descheduler",
    "kubernetes/cronjob/cronjob.yaml",
    commit="0d1704a1920b83087bb52bfdf6bfb1444d1909d3",
    licence="Apache-2.0",
    digest="df4d77326be6d3de",
    jobs={"descheduler-cronjob": "*/2 * * * * UTC skip container"},
    report=(
        "container-settings",
        "pod-restricted",
        "no-time-limit",
        "descheduler-cronjob forbid-retries-later",
        *["descheduler-cronjob field-not-supported"] * 6,
    ),
)
REAL: Final = (
    *(AIRFLOW_BASH, AIRFLOW_LATEST, AIRFLOW_LOOP, CELERY_DJANGO, CELERY_PERIODIC, CELERY_SUPERSET),
    *(CRON_DRAGONFLY, CRON_MUSHROOM, CRON_NETBSD, KUBERNETES_DESCHEDULER),
)


def files(kind: Kind) -> Iterator[Path]:
    assert FOLDER
    yield from sorted((Path(FOLDER) / kind).iterdir())


def summary(job: JobDefinition) -> str:
    """Return the schedule and the work of a job in a line."""
    kinds = [name for name in ("command", "container", "function") if getattr(job, name) is not None][:1]
    steps = [f"{step.name}<-{'+'.join(step.depends_on)}" if step.depends_on else step.name for step in job.dag]
    parts = (
        job.schedule or "on demand",
        job.timezone,
        job.overlap_policy,
        *kinds,
        *steps,
        "" if job.enabled else "disabled",
    )
    return " ".join(filter(None, parts))


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.path)
def test_known_file_becomes_these_jobs(real: RealFile, tmp_path: Path) -> None:
    found = [file for file in files(real.kind) if sha256(file.read_bytes()).hexdigest().startswith(real.digest)]
    if not found:
        pytest.skip(f"{real.repository} {real.path} is not in the folder")
    written = import_files(real.kind, [str(found[0])], now=NOW, timezone="UTC")
    jobs = registrable(written, tmp_path) if written.jobs else {}
    assert {name: summary(job) for name, job in jobs.items()} == real.jobs
    lines = (
        " ".join(filter(None, (finding.source.removeprefix(str(found[0])), finding.job, finding.code)))
        for finding in written.findings
    )
    assert tuple(lines) == real.report


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_imported_or_refused(kind: Kind, tmp_path: Path) -> None:
    """Each job can be applied, and a file without jobs has a reason."""
    jobs, refused = 0, list[str]()
    for file in files(kind):
        try:
            written = import_files(kind, [str(file)], now=NOW, timezone="UTC")
        except DefinitionError as error:
            refused.append(f"{file.name}: {error}")
            continue
        assert written.jobs or written.findings, file
        jobs += len(registrable(written, tmp_path)) if written.jobs else 0
    assert jobs
    assert refused == [], "read the reasons: only files of no such format may be refused"
