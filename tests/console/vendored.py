"""The libraries of other authors that the console serves, as their packages hold them.

    python -m tests.console.vendored            check that the committed files are as pinned
    python -m tests.console.vendored --update   fetch the pinned packages with `npm pack`, and write the files

`vendor.json` names the packages, their versions and the digests of what
they hold. The browser resolves no names of
packages, so imports by name become imports by path; nothing else is changed.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

VENDOR: Final = Path(str(files("tocsin") / "adapters/http/console/static/vendor"))
MANIFEST: Final = VENDOR / "vendor.json"


def manifest() -> dict[str, Any]:
    """Return the pinned packages: name → version, licence, digest of the archive, and its files."""
    packages: dict[str, Any] = json.loads(MANIFEST.read_text())
    return packages


def digest(content: bytes) -> str:
    """Return a SHA-256 digest, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def differences() -> list[str]:
    """Return what differs between the manifest and the committed files."""
    expected = {MANIFEST.name: digest(MANIFEST.read_bytes())}
    for package in manifest().values():
        expected |= {file["as"]: file["sha256"] for file in package["files"].values()}
    found = {path.name: digest(path.read_bytes()) for path in VENDOR.iterdir() if path.is_file()}
    return [
        f"{name}: not as vendor.json says" for name in sorted(expected | found) if expected.get(name) != found.get(name)
    ]


def update() -> None:
    """Write the files of the pinned packages, and their digests.

    Raises:
        ValueError: a package differs from what was pinned.
    """
    packages = manifest()
    imports = {
        file["imported"]: file["as"]
        for package in packages.values()
        for file in package["files"].values()
        if "imported" in file
    }
    for name, package in packages.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["npm", "pack", "--silent", f"{name}@{package['version']}"], cwd=folder, check=True)  # noqa: S607 - npm, wherever it is
            [archive] = Path(folder).iterdir()
            if package.setdefault("sha256", digest(archive.read_bytes())) != digest(archive.read_bytes()):
                raise ValueError(f"{name} {package['version']} differs from what was pinned")
            with tarfile.open(archive) as contents:
                for path, file in package["files"].items():
                    member = contents.extractfile(f"package/{path}")
                    text = member.read().decode() if member else ""
                    for imported, local in imports.items():
                        text = text.replace(f'from"{imported}"', f'from"./{local}"')
                    (VENDOR / file["as"]).write_text(text)
                    file["sha256"] = digest(text.encode())
    MANIFEST.write_text(json.dumps(packages, indent=2) + "\n")


def main() -> int:
    """Check the files, or write them."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--update", action="store_true")
    if arguments.parse_args().update:
        update()
    found = differences()
    for line in found:
        sys.stdout.write(f"{line}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
