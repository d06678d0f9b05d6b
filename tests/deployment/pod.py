"""A pod of a manifest as a process of this machine.

It has an address of its own (127.x.y.z), so that no port changes. Its volumes are folders, laid out as the kubelet does. Where a text of its
configuration, environment or command names a path of a mount, the host of another pod or every address, the folder, the address or the own
address takes that place.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import httpx

from tests.databases import as_user
from tests.deployment.image import START, entrypoint
from tests.deployment.manifests import Object, dockerfile_environment
from tests.system import forked

EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - replaced by the address of the pod
REPOSITORY: Final = Path(__file__).parents[2]


@dataclass
class Objects:
    """The ConfigMaps and Secrets that pods mount, and the addresses of hosts."""

    config_maps: Mapping[str, Mapping[str, str]]
    secrets: dict[str, dict[str, str]]
    hosts: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Pod:
    """A pod, which may run, end and start again."""

    name: str
    address: str
    template: Object
    objects: Objects
    folder: Path
    claims: Sequence[str] = ()
    """Names of its claims, whose data outlive it."""
    starts: int = 0
    process: "ForkServerProcess | subprocess.Popen[bytes] | None" = None
    has_started: bool = False
    """Whether its startup probe succeeded."""

    @property
    def container(self) -> Object:
        [only] = self.template["spec"]["containers"]
        found: Object = only
        return found

    @property
    def said(self) -> str:
        """The output of all its containers."""
        path = self.folder / "said"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the newest container; None while it runs."""
        if isinstance(self.process, subprocess.Popen):
            return self.process.poll()
        return None if self.process is None else self.process.exitcode

    def start(self) -> None:
        """Start a container with new empty folders."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "said").touch()
        shutil.rmtree(self.folder / "volumes", ignore_errors=True)
        self.starts += 1
        self.has_started = False
        mounts = self._mounts()
        environment = {**dockerfile_environment(), **self._environment(mounts)}
        command: list[str] = self.container.get("command") or [entrypoint(self.container["image"])]
        program, *arguments = (self._mapped(word, mounts) for word in [*command, *self.container.get("args", ())])
        if program == "tocsin":
            self.process = forked.start(
                "tocsin", arguments, environment=environment, folder=self.folder, said=self.folder / "said"
            )
            return
        command, user = START[program](arguments, environment, self.address)
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={"PATH": os.environ["PATH"], **environment},
                cwd=self.folder,
                start_new_session=True,
                **as_user(user),
            )

    async def terminate(self) -> None:
        """End the container as the kubelet does: SIGTERM, and SIGKILL after the grace period.

        Raises:
            AssertionError: it did not end by itself, or the manifest has a hook that this does not run.
        """
        assert "lifecycle" not in self.container
        assert self.process is not None
        assert self.process.pid is not None
        grace = self.template["spec"]["terminationGracePeriodSeconds"]
        os.kill(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self.exit_code is None:  # noqa: ASYNC110 - a process does not signal
                    await asyncio.sleep(0.1)
        ended = self.exit_code
        self.kill()
        assert ended is not None, f"{self.name} did not end within {grace} s:\n{self.said[-3_000:]}"

    def kill(self) -> None:
        """Kill -9."""
        if self.process is not None and self.exit_code is None:
            self.process.kill()
        self.join()

    def join(self) -> None:
        """Wait for the end of the process."""
        if isinstance(self.process, subprocess.Popen):
            self.process.wait()
        elif self.process is not None:
            self.process.join()

    def written_outside(self) -> list[str]:
        """Return what the process wrote into its working folder, which is read-only in a container."""
        return sorted({file.name for file in self.folder.iterdir()} - {"said", "volumes", "claims"})

    async def is_ready(self) -> bool:
        """Ask its probes: first that of the start, then that of the readiness."""
        if self.process is None or self.exit_code is not None:
            return False
        if not self.has_started:
            self.has_started = await self.probe("startupProbe")
        return self.has_started and await self.probe("readinessProbe")

    async def probe(self, kind: str) -> bool:
        """Ask a probe as the kubelet does; a probe that is absent succeeds."""
        probe = self.container.get(kind)
        if probe is None:
            return True
        timeout = probe.get("timeoutSeconds", 1)
        if "httpGet" in probe:
            url = f"http://{self.address}:{self.port(probe['httpGet']['port'])}{probe['httpGet']['path']}"
            try:
                async with httpx.AsyncClient(trust_env=False, timeout=timeout) as client:
                    return (await client.get(url)).is_success
            except httpx.TransportError:
                return False
        command = [argument.replace("127.0.0.1", self.address) for argument in probe["exec"]["command"]]
        command, _ = START[command[0]](command[1:], {}, self.address)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: ASYNC221 - it answers at once

    def port(self, named: int | str) -> int:
        """Return the number of a port of the container."""
        if isinstance(named, int):
            return named
        [port] = [port["containerPort"] for port in self.container["ports"] if port["name"] == named]
        return int(port)

    def environment(self) -> dict[str, str]:
        """Return the environment of its container."""
        return {**dockerfile_environment(), **self._environment(self._mounts())}

    def _environment(self, mounts: Mapping[str, Path]) -> dict[str, str]:
        made: dict[str, str] = {}
        for variable in self.container.get("env", ()):
            source = variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                made[variable["name"]] = self.objects.secrets[reference["name"]][reference["key"]]
            elif "fieldRef" in source:
                assert source["fieldRef"] == {"fieldPath": "metadata.name"}
                made[variable["name"]] = self.name
            else:
                text = self._mapped(variable["value"], mounts)
                made[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda found: made[found[1]], text)
        return made

    def _mounts(self) -> dict[str, Path]:
        """Return the folder or file of each mount, made if it is absent."""
        volumes = {volume["name"]: volume for volume in self.template["spec"].get("volumes", ())}
        paths: dict[str, Path] = {}
        for mount in self.container.get("volumeMounts", ()):
            folder = self.folder / "volumes" / mount["mountPath"].strip("/").replace("/", "-")
            if mount["name"] in self.claims:
                folder = self.folder / "claims" / mount["name"]
                folder.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            paths[mount["mountPath"]] = folder / mount["subPath"] if "subPath" in mount else folder
        for mount in self.container.get("volumeMounts", ()):
            path, volume = paths[mount["mountPath"]], volumes.get(mount["name"], {})
            files = self._files(volume)
            if files is None:
                continue
            mapped = {name: self._mapped(text, paths) for name, text in files.items()}
            if "subPath" in mount:
                path.write_text(mapped[mount["subPath"]], "utf-8")
            elif not (path / "..data").exists():
                _lay(path, mapped)
        return paths

    def _files(self, volume: Object) -> dict[str, str] | None:
        if "configMap" in volume:
            return {**self.objects.config_maps[volume["configMap"]["name"]]}
        if "secret" in volume:
            secret = self.objects.secrets[volume["secret"]["secretName"]]
            items = volume["secret"].get("items")
            return {**secret} if items is None else {item["path"]: secret[item["key"]] for item in items}
        assert volume.keys() <= {"name", "emptyDir"}
        return None

    def _mapped(self, text: str, mounts: Mapping[str, Path]) -> str:
        """Replace paths by folders, every address by the own address, and the hosts in URLs by addresses."""
        places = {EVERY_ADDRESS: self.address, **{path: str(to) for path, to in mounts.items()}}
        text = re.sub(rf"(?<![\w./-])(?:{_any_of(places)})(?![\w-]|\.\w)", lambda found: places[found[0]], text)
        hosts = self.objects.hosts
        return (
            re.sub(rf"(?<=//|.@)(?:{_any_of(hosts)})(?=[:/])", lambda found: hosts[found[0]], text) if hosts else text
        )


def _any_of(words: Collection[str]) -> str:
    """Return a pattern of words, the longest first."""
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


def _lay(folder: Path, files: Mapping[str, str]) -> None:
    """Lay files as the kubelet does: links to `..data`, which links to a folder of this version."""
    version = folder / "..2026_11_26"
    version.mkdir()
    for name, text in files.items():
        (version / name).write_text(text, "utf-8")
    (folder / "..data").symlink_to(version.name)
    for name in files:
        (folder / name).symlink_to(f"..data/{name}")
