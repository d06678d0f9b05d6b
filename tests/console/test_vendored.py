"""The libraries of other authors are as pinned, and small enough."""

import gzip

from tests.console.vendored import VENDOR, differences, manifest

MOST_BYTES = 250_000


def test_vendored_files_are_pinned() -> None:
    assert differences() == []


def test_each_package_has_its_licence() -> None:
    for name, package in manifest().items():
        assert "LICENSE" in package["files"], name


def test_scripts_are_small() -> None:
    scripts = [*VENDOR.parent.rglob("*.js")]
    assert len(scripts) > len(manifest())
    assert sum(len(gzip.compress(path.read_bytes())) for path in scripts) < MOST_BYTES
