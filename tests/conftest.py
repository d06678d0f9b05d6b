"""The shared fixtures of all tests: one throw-away nats-server per test process."""

import fcntl
import gc
import logging
import os
import sys
import tempfile
import zoneinfo
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.resources import files
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from tests.properties import RANDOM, examples
from tests.servers import REPLICAS, SERVER
from tocsin.adapters.nats.server.cluster import EmbeddedCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer

if TYPE_CHECKING:
    from tests.s3_server import S3Server

LANES = 2
"""How many slow tests run at once, where there are twice as many xdist workers."""
FULL = "TOCSIN_TEST_FULL"
"""The variable with which the tests marked `full` run too, as in `.ci/run --full`."""
CONSOLE = "tests.console"
"""The package whose modules share a browser and an installation, which take long to set up."""
CONSOLE_SHARE = 3
"""How many of its tests take the time of another slow test."""
THRESHOLDS = (50_000, 20, 100)
"""Allocations before the youngest generation is collected, and collections before the next generations are."""
SLOW_TIMEOUT = 1_800
"""Seconds; only to end what would never end, on a machine that others use too."""


hypothesis.settings.register_profile(
    "tocsin",
    deadline=None,  # another program may take the processor
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=not os.environ.get(RANDOM),
    max_examples=examples(100),
    database=None,
)
hypothesis.settings.load_profile("tocsin")


@pytest.fixture(scope="session", autouse=True)
def instruments() -> InMemoryMetricReader:
    """Return the reader of all instruments. It is there before any API, because a process has one provider."""
    reader = InMemoryMetricReader(preferred_temporality={Counter: AggregationTemporality.DELTA})
    set_meter_provider(MeterProvider([reader]))
    return reader


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: many processes, or many seconds; `-m 'not slow'` leaves it out")
    config.addinivalue_line("markers", f"full: about a minute of both processors; skipped unless {FULL} is set")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and exempt them from then on.

    Python would visit half a million objects again and again, of which none is garbage.
    """
    gc.disable()
    try:
        with _after_the_first(session.config):
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()


@contextmanager
def _after_the_first(config: pytest.Config) -> Iterator[None]:
    """Let one xdist worker collect before the others, which then read the bytecode that it wrote.

    In a fresh clone, each would otherwise compile every module of the tests.
    """
    run = getattr(config, "workerinput", {}).get("testrunuid")
    if run is None or sys.dont_write_bytecode:
        yield
        return
    with Path(tempfile.gettempdir(), f"tocsin-tests-{run}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
        Path(lock.name).unlink(missing_ok=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow tests, a few at a time, while others use what they leave.

    At the end, all at once, each would take from the others the processors that all of their processes wait for. Each xdist
    worker is given an equal part of the list, and takes from those of the others when it is through. The slow tests of a
    module stay together, because they share its fixtures.
    """
    slow, quick = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        if item.get_closest_marker("full") and not os.environ.get(FULL):
            item.add_marker(pytest.mark.skip(reason=f"`.ci/run --full` runs it; so does {FULL}=1"))
        (slow if item.get_closest_marker("slow") else quick).append(item)
    lanes: list[list[pytest.Item]] = [[] for _ in range(LANES)]
    loads = [0.0] * LANES
    for name, together in groupby(slow, _sharing):
        lane, tests = loads.index(min(loads)), list(together)
        lanes[lane] += tests
        loads[lane] += len(tests) / (CONSOLE_SHARE if name == CONSOLE else 1)
    for item in slow:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))
    part = -(-len(quick) // LANES)
    items[:] = chain.from_iterable((*lanes[lane], *quick[lane * part : (lane + 1) * part]) for lane in range(LANES))


def _sharing(item: pytest.Item) -> str:
    """Name the module or package that a test shares fixtures with."""
    module = item.nodeid.partition("::")[0].removesuffix(".py").replace("/", ".")
    return CONSOLE if module.startswith(f"{CONSOLE}.") else module


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address a server of this xdist worker's own; tests keep apart by the names of their streams and buckets."""
    named = os.environ.get(SERVER)
    binary = Path(named) if named else None
    if REPLICAS is None:
        with EmbeddedServer(port=ANY_PORT, binary=binary).start() as server:
            yield server.url
            server.stop(timeout_s=0.0)  # with thousands of streams, an orderly end takes 20 seconds
        return
    folder = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(folder, REPLICAS, ANY_PORT, binary=binary).start() as cluster:
        yield cluster.nodes[0].server.url


@pytest.fixture(scope="session")
def s3() -> "Iterator[S3Server]":
    """Return a server of this xdist worker that speaks the S3 protocol. Tests keep apart by their buckets."""
    from tests.s3_server import s3_server  # noqa: PLC0415 - boto3 takes half a second

    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _logging_as_at_first() -> Iterator[None]:
    """Reset the logging configuration that a test set for the whole process.

    A handler that a test left would write to its closed stream at the end of the run, in place of the names of failed tests.

    Tracebacks are plain: with every local variable, as structlog prints them at first, one takes up to ten seconds.
    """
    structlog.reset_defaults()
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer])
    for name in ("tocsin", "tocsin.task"):  # a level of an earlier test would have this test write lines
        logging.getLogger(name).setLevel(logging.NOTSET)
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Restore the handlers of the process after a test that configures them."""
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


@pytest.fixture
def other_zone_table(tmp_path: Path) -> Iterator[None]:
    """A machine whose table of time zones differs from the package's: New York has the clock of Tokyo."""
    folder = tmp_path / "zones" / "America"
    folder.mkdir(parents=True)
    (folder / "New_York").write_bytes(files("tzdata").joinpath("zoneinfo/Asia/Tokyo").read_bytes())
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=[folder.parent])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(to=before)
    zoneinfo.ZoneInfo.clear_cache()
