"""What `import tocsin` gives, and what it leaves alone."""

import subprocess
import sys

import pytest

import tocsin


def test_the_public_names_are_those_of_the_sdk() -> None:
    assert dir(tocsin) == ["Context", "NonRetryableError", "Worker", "__version__"]
    assert tocsin.Worker.connect_by_default is not None


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'tocsin' has no attribute 'Wroker'"):
        tocsin.Wroker  # noqa: B018


def test_the_domain_does_not_bring_the_sdk() -> None:
    program = (
        f"import sys; sys.path = {sys.path!r}; import tocsin.domain.ids; assert 'tocsin.worker' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
