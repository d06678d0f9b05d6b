"""Names on the wire: subjects, streams and buckets of one installation.

Relative names (`tocsin.subjects`) become names on the wire by the root token, the partition of the job, and the public
prefixes. With the default names:

    relative                        on the wire
    execution.<job>.<id>.admitted   tocsin.0.execution.<job>.<id>.admitted
    trigger.<job>                   tocsin.0.trigger.<job>
    public.trigger.<job>            cron.trigger.<job>
    public.cancel.<job>.<id>        cron.cancel.<job>.<id>
    outside.<program>.trigger.<job> tocsin.outside.<program>.trigger.<job>, which the server makes of cron.trigger.<job>
    mq.scheduled.<job>              mq.scheduled.<job>
    cron.triggered.<job>            tocsin.0.cron.triggered.<job>, republished as cron.triggered.<job>
    api.<operation>                 tocsin.api.<operation>

Agents, the agent keeper and the matcher use `tocsin.agent.<name>.<id>.hold`, `tocsin.task.<name>.<id>`,
`tocsin.task.<name>.<id>.run`, `tocsin.task.<name>.<id>.end` and `tocsin.agents`, which no stream captures.
Screeners hear `tocsin.unscreened.<user>.<relative>`, which no stream captures either.

This module alone adds and removes the partition. Public subjects, subjects of the MQ bridge and of the API, and keys of
buckets have none: programs outside do not know it.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from ....subjects import (
    COMMITS,
    OUTSIDE_INPUTS,
    PARTITIONS,
    PUBLIC_EVENTS,
    PUBLIC_INPUTS,
    STREAM_SUBJECTS,
    Bucket,
    Stream,
    captured_stream,
    partition_token,
    stream_names,
)

PROBE: Final = "probe"
"""What `tocsin doctor` publishes for each user outside, to learn whether a screener listens. It has no answer."""
_ROOT: Final = re.compile(r"[a-z][a-z0-9-]*")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TRIGGER: Final = f"{PUBLIC_INPUTS}trigger."
_CANCEL: Final = f"{PUBLIC_INPUTS}cancel."
_MQ: Final = "mq."
_UNPARTITIONED: Final = ("api.", OUTSIDE_INPUTS)
_SPECIAL: Final = (_MQ, *_UNPARTITIONED, PUBLIC_INPUTS)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one installation, which differ from all others on one server."""

    root: str = "tocsin"
    trigger_prefix: str = "cron.trigger"
    """Any client may publish on `<trigger_prefix>.<job>` to run a job."""
    public_prefix: str = "cron"
    """The prefix of the public events `cron.triggered` and `cron.skipped`, and of `<public_prefix>.cancel.<job>.<id>`."""
    mq_prefix: str = "mq"
    partitions: int = PARTITIONS
    """More than the default is not supported yet beside the names of subjects."""
    _first_partition: str = field(init=False, repr=False, compare=False)
    """The beginning of the subjects of partition 0, and so of all if there is one partition."""

    def __post_init__(self) -> None:
        """Reject names that would only fail on the wire."""
        object.__setattr__(self, "_first_partition", f"{self.root}.0.")
        if not _ROOT.fullmatch(self.root):
            raise ValueError(f"root {self.root!r}: one token of small letters, digits and hyphens is needed")
        for name in ("trigger_prefix", "public_prefix", "mq_prefix"):
            if not _PREFIX.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} {getattr(self, name)!r}: no NATS subject")

    def to_wire(self, relative: str) -> str:
        """Return the subject or filter under which Tocsin itself stores a relative one."""
        if self.partitions == 1 and not relative.startswith(_SPECIAL):
            return self._first_partition + relative
        if relative.startswith(_MQ):
            return f"{self.mq_prefix}.{relative[len(_MQ) :]}"
        if relative.startswith(_UNPARTITIONED):
            return f"{self.root}.{relative}"
        if relative.startswith(PUBLIC_INPUTS):
            for kind, prefix in self._heard:
                if relative.startswith(kind):
                    return f"{prefix}.{relative[len(kind) :]}"
        return f"{self.root}.{partition_token(relative, self.partitions)}.{relative}"

    def from_wire(self, wire: str) -> str:
        """Return the relative name of a subject on the wire; a foreign subject stays unchanged."""
        if wire.startswith(self._first_partition):
            return wire[len(self._first_partition) :]
        root, _, rest = wire.partition(".")
        if root == self.root and rest:
            partition, _, relative = rest.partition(".")
            if partition.isdecimal():
                return relative
            return rest if rest.startswith(_UNPARTITIONED) else wire
        for kind, prefix in self._heard:
            if wire.startswith(f"{prefix}."):
                return kind + wire[len(prefix) + 1 :]
        if wire.startswith(f"{self.mq_prefix}."):
            return _MQ + wire[len(self.mq_prefix) + 1 :]
        return wire

    @property
    def _heard(self) -> tuple[tuple[str, str], ...]:
        """The kinds of public requests and their prefixes."""
        return (_TRIGGER, self.trigger_prefix), (_CANCEL, self.cancel_prefix)

    @property
    def cancel_prefix(self) -> str:
        """Any client may publish on `<cancel_prefix>.<job>.<execution>` to cancel an execution."""
        return f"{self.public_prefix}.cancel"

    def unscreened(self, sender: str, relative: str) -> str:
        """Return the subject on which screeners hear a user outside, for a stream."""
        return f"{self.root}.unscreened.{sender}.{relative}"

    def hold_list(self, name: str, agent_id: str) -> str:
        """Return the subject on which an agent sends its hold lists."""
        return f"{self.root}.agent.{name}.{agent_id}.hold"

    def agent_commands(self, name: str, agent_id: str) -> str:
        """Return the subject on which an agent hears commands."""
        return f"{self.root}.task.{name}.{agent_id}"

    def agent_tasks(self, name: str, agent_id: str) -> str:
        """Return the subject on which an agent receives tasks."""
        return f"{self.agent_commands(name, agent_id)}.run"

    def agent_ends(self, name: str, agent_id: str) -> str:
        """Return the subject on which an agent hears which executions are over."""
        return f"{self.agent_commands(name, agent_id)}.end"

    @property
    def roll_call(self) -> str:
        """The subject on which all agents hear a roll call."""
        return f"{self.root}.agents"

    @property
    def fetch_requests(self) -> str:
        """The subject on which matchers hear the fetches of workers over HTTP."""
        return f"{self.root}.fetch.request"

    def fetch_answers(self, gateway: str) -> str:
        """Return the subject on which a gateway hears answers to its fetches."""
        return f"{self.root}.fetch.answer.{gateway}"

    @property
    def fetch_calls(self) -> str:
        """The subject on which gateways hear that another matcher leads."""
        return f"{self.root}.fetch.call"

    def alerts(self, job: str) -> str:
        """Return the subject of the alerts of a job; `job` is its token."""
        return f"{self.public_prefix}.alert.{job}"

    def stream(self, stream: Stream) -> str:
        """Return the name of a stream: `TOCSIN_REPORTS`."""
        return f"{self.root.upper().replace('-', '_')}_{stream}"

    def own_streams(self) -> frozenset[str]:
        """Return the names of the streams of messages and commits."""
        return stream_names(self.root)

    def trigger_durable(self, name: str) -> str:
        """Return the name of a durable for the events of a trigger."""
        return f"{self.root}-trigger-{name}"

    @property
    def webhook_stream(self) -> str:
        """The name of the stream of requests to webhooks: `TOCSIN_WEBHOOKS`."""
        return f"{self.root.upper().replace('-', '_')}_WEBHOOKS"

    @property
    def commits_stream(self) -> str:
        """The name of the stream of the log of commits: `tocsin_COMMITS`."""
        return f"{self.root}_{COMMITS}"

    @property
    def commits_prefix(self) -> str:
        """The prefix of the partition in the subjects of the log of commits: `tocsin.commits`."""
        return f"{self.root}.commits"

    @property
    def turns(self) -> str:
        """The subject on which processes request their turns to store a commit."""
        return f"{self.root}.turn"

    @property
    def captured_stream(self) -> str:
        """The name of the stream of messages that programs publish without one: `TOCSIN_EVENTS`."""
        return captured_stream(self.root)

    def webhook(self, durable: str) -> str:
        """Return the subject of the requests to a webhook by its trigger's durable."""
        return f"{self.root}.webhook.{durable}"

    def captured(self, stream: Stream) -> list[str]:
        """Return the subjects that a stream stores on the server."""
        stored = (PUBLIC_EVENTS,) if stream is Stream.LOG else STREAM_SUBJECTS[stream]
        return [self.to_wire(relative) for relative in stored]

    def republished(self) -> tuple[str, str]:
        """Return the filter of the events that the log republishes, and their public name."""
        _, _, tail = PUBLIC_EVENTS.partition(".")
        return self.to_wire(PUBLIC_EVENTS), f"{self.public_prefix}.{tail}"

    def bucket(self, bucket: Bucket) -> str:
        """Return the name of a KV bucket: `tocsin_definitions`."""
        return f"{self.root}_{bucket}"

    def bucket_stream(self, bucket: Bucket) -> str:
        """Return the name of the stream of a KV bucket."""
        return f"KV_{self.bucket(bucket)}"

    @property
    def archive_bucket(self) -> str:
        """The name of the archive's object store: `tocsin_archive`."""
        return f"{self.root}_archive"

    @property
    def archive_stream(self) -> str:
        """The stream of the archive's object store."""
        return f"OBJ_{self.archive_bucket}"

    def key(self, bucket: Bucket, key: str) -> str:
        """Return the subject of a key in a bucket."""
        return f"$KV.{self.bucket(bucket)}.{key}"
