"""Check a release, print its notes, and pin its images.

    python compose/release.py check v0.2.0              version, chart and changelog agree with the tag
    python compose/release.py notes v0.2.0              print the section of the changelog
    python compose/release.py pin images.lock FILE …    write digests into the lock, and into files that name an image

It needs Python alone; `pin` also needs docker with buildx.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def version(root: Path = ROOT) -> str:
    """Return the version of the package."""
    text = (root / "src" / "tocsin" / "__init__.py").read_text(encoding="utf-8")
    [found] = re.findall(r'^__version__: Final = "([^"]+)"$', text, re.MULTILINE)
    return str(found)


def notes(root: Path, released: str) -> str:
    """Return the text of a version in the changelog.

    Raises:
        SystemExit: the version is missing, or has no date.
    """
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(released)}\]: (\S+)\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section [{released}]. Add `## [{released}]: YYYY-MM-DD`.")
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", found[1]) is None:
        raise SystemExit(
            f"the section [{released}] of CHANGELOG.md says {found[1]!r} in place of its date, YYYY-MM-DD."
        )
    return found[2].strip() + "\n"


def check(root: Path, tag: str) -> None:
    """Compare a tag with the version, the chart and the changelog.

    Raises:
        SystemExit: they differ.
    """
    ours = version(root)
    chart = (root / "compose" / "helm" / "tocsin" / "Chart.yaml").read_text(encoding="utf-8")
    found = {
        "the tag": tag.removeprefix("v"),
        **{
            f"`{name}` of Chart.yaml": value
            for name, value in re.findall(r"^(version|appVersion): (\S+)$", chart, re.MULTILINE)
        },
    }
    wrong = [f"{what} is {value}" for what, value in found.items() if value != ours]
    if wrong:
        raise SystemExit(f"the version of the package is {ours}, but {', '.join(wrong)}.")
    notes(root, ours)


def inspect(name: str) -> str:
    """Return the digest of an image in its registry."""
    command = ["docker", "buildx", "imagetools", "inspect", name, "--format", "{{.Manifest.Digest}}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - names of our own lock
    return answer.stdout.strip()


def pin(lock: Path, files: list[Path], digest_of: Callable[[str], str] = inspect) -> None:
    """Write the digest of each image into the lock and into the files.

    Raises:
        SystemExit: a registry gives another digest than the lock, or none.
    """
    lines = lock.read_text(encoding="utf-8").splitlines()
    pinned = {line: _pinned(line, digest_of) for line in lines if line and not line.startswith("#")}
    lock.write_text("".join(f"{pinned.get(line, line)}\n" for line in lines), encoding="utf-8")
    for file in files:
        text = file.read_text(encoding="utf-8")
        for image, exact in pinned.items():
            text = re.sub(rf"(?<![\w./-]){re.escape(image)}(?![\w.@-])", exact, text)
        file.write_text(text, encoding="utf-8")


def _pinned(line: str, digest_of: Callable[[str], str]) -> str:
    name, _, before = line.partition("@")
    digest = digest_of(name if ":" in name else line)  # without a tag only the digest names the image
    if DIGEST.fullmatch(digest) is None:
        raise SystemExit(f"the registry gives {digest!r} as the digest of {name}.")
    if before not in {"", digest}:
        raise SystemExit(
            f"{name} is pinned to {before}, but the registry gives {digest}. Find out why before you release."
        )
    return f"{name}@{digest}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check", tag]:
            check(ROOT, tag)
        case ["notes", tag]:
            print(notes(ROOT, tag.removeprefix("v")), end="")
        case ["pin", lock, *files]:
            pin(Path(lock), [Path(file) for file in files])
        case _:
            sys.exit(__doc__)
