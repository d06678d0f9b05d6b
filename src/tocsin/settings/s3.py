"""Settings of the archive, of S3 stores, and of locations in them."""

import re
from typing import Annotated, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from .fields import Duration, Folder, Section, origin

S3_SCHEME: Final = "s3://"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*")
"""Characters that every store takes unchanged (S3 User Guide, Safe characters)."""
_SLOW_CLASSES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})


class S3Location(NamedTuple):
    """A place in a bucket. `prefix` has no slashes at its ends, or is empty."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{S3_SCHEME}{self.bucket}{'/' if self.prefix else ''}{self.prefix}"


def s3_location(url: str) -> S3Location:
    """Read `s3://BUCKET/PREFIX`."""
    bucket, _, prefix = url.removeprefix(S3_SCHEME).partition("/")
    prefix = prefix.removesuffix("/")
    is_prefix = not prefix or (_PREFIX.fullmatch(prefix) and not {".", ".."} & {*prefix.split("/")})
    if not (url.startswith(S3_SCHEME) and _BUCKET.fullmatch(bucket) and is_prefix):
        raise ValueError(
            "must be `s3://BUCKET` or `s3://BUCKET/PREFIX`: a bucket of 3 to 63 small letters, digits, `-` and `.`, and names of letters, "
            "digits and `!_.*'()-` between slashes"
        )
    return S3Location(bucket, prefix)


def _storage_class(name: str | None) -> str | None:
    if name in _SLOW_CLASSES:
        raise ValueError("must be a class whose objects can be read at once, such as `STANDARD_IA` or `GLACIER_IR`")
    return name


class S3(Section):
    """A store that speaks the S3 protocol.

    What is not set comes from the standard variables of AWS (`AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` …), and credentials then from the role of the pod, the container or the machine.
    """

    endpoint: Annotated[str, AfterValidator(origin)] | None = None
    """URL of the store, such as `https://minio.example.com:9000`; by default AWS."""
    region: str | None = Field(default=None, pattern=r"^[a-z0-9-]+$")
    """Region of the bucket; by default `AWS_REGION`, or `us-east-1`."""
    access_key_id: str | None = Field(default=None, min_length=1)
    """Access key, together with `secret_access_key`."""
    secret_access_key: SecretStr | None = None
    """Secret of `access_key_id`. It is shown masked."""
    session_token: SecretStr | None = None
    """Token of temporary credentials. It is shown masked."""
    path_style: bool = True
    """Name the bucket in the path; false: in the host, as some stores require."""
    ca: Folder | None = None
    """File with certificates in PEM that are trusted beside those of public authorities."""
    encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    """Encryption by the store: `AES256` (SSE-S3) or with a key of KMS; by default as the bucket says."""
    kms_key: str | None = Field(default=None, pattern=r"^[\x21-\x7e]+$")
    """Id or ARN of the key, if `encryption` is of KMS; by default the key of the bucket or of the account."""
    storage_class: Annotated[str | None, Field(pattern=r"^[A-Z][A-Z0-9_]*$"), AfterValidator(_storage_class)] = None
    """Storage class of new objects, such as `STANDARD_IA`; by default that of the store."""
    conditional_writes: bool = True
    """Write with `If-None-Match: *`, so that no object is ever overwritten; false: for stores without it, which are looked at before."""
    checksums: bool = True
    """Send the SHA-256 of each object, as buckets with Object Lock require; false: for stores that refuse it."""
    timeout: Duration = 30.0
    """Time limit of one request, its body included."""
    retry_timeout: Duration = 60.0
    """Time after which a request that failed is not sent again."""

    @model_validator(mode="after")
    def _has_whole_credentials(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("set both `access_key_id` and `secret_access_key`, or none of them")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("`session_token` belongs to `access_key_id` and `secret_access_key`: set them too")
        return self

    @model_validator(mode="after")
    def _encrypts_with_its_key(self) -> Self:
        if self.kms_key is not None and (self.encryption or "").partition(":")[0] != "aws":
            raise ValueError("`kms_key` needs `encryption: aws:kms` or `encryption: aws:kms:dsse`")
        return self

    def host_endpoint(self, bucket: str) -> str | None:
        """Return the endpoint of requests for a bucket; None: that of AWS."""
        if self.endpoint is None or self.path_style:
            return self.endpoint
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{bucket}.{parts.netloc}"


def _archive_target(text: str) -> str:
    if text.startswith(S3_SCHEME):
        return str(s3_location(text))
    if text == "nats" or text.startswith("file:///"):
        return text
    raise ValueError(
        "must be `nats` (an object store there), a folder that every node reaches, `file:///…`, or `s3://BUCKET/PREFIX`"
    )


class Archive(Section):
    """Moving old messages out of the streams (hip-62, Execution History)."""

    enabled: bool = True
    """Run the archiver."""
    target: Annotated[str, AfterValidator(_archive_target)] = "nats"
    """`nats`, an object store beside the streams; a folder, `file:///…`, that every node reaches; or `s3://BUCKET/PREFIX`, with the extra `s3`."""
    s3: S3 = S3()
    hot_window: Duration = 86_400.0
    """Time for which commits, inputs and public events stay in the streams."""
    max_messages: int = Field(default=500_000, ge=1)
    """Commits in the log above which commits inside the hot window are archived too, from two minutes of age."""
    max_input_bytes: int = Field(default=1_073_741_824, ge=1_048_576)
    """Size at which a stream of inputs, requests or reports refuses messages; from half of it on they are archived earlier.

    The stream of the MQ bridge has this limit too, and is not archived. Each server reserves this size for each such stream. Without the archiver the streams are unlimited.
    """
    max_outside_messages: int = Field(default=100_000, ge=1)
    """Number of requests of programs outside at which their stream refuses more; from half of it on they are archived earlier.

    The decisions on a request of 50 bytes take about 1,500 in the log, so the size alone would bound little.
    """
    interval: Duration = 300.0
    """Time between two searches for messages to archive."""
    output: bool = False
    """Keep the lines of handlers with their execution, beyond `output.max_age`, which must then be above `hot_window`."""

    @property
    def outside_messages(self) -> int:
        """The limit of the stream of programs outside; -1: unlimited, because nothing else makes room."""
        return self.max_outside_messages if self.enabled else -1

    @property
    def input_bytes(self) -> int:
        """The limit of each stream of inputs; -1: unlimited, because nothing else makes room."""
        return self.max_input_bytes if self.enabled else -1
