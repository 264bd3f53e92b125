"""The verbs of S3 on one bucket: tried again while a failure may pass, and then refused with a code.

A message names bucket, key and operation, and of an answer only its code: what a server or the library says may repeat
credentials. For the same reason no error of the library is the cause of one of ours.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from paren.text.errors import ParenError
from paren.train.files import Bytes

if TYPE_CHECKING:
    from paren.train.places.lease import Lease

T = TypeVar("T")

CONNECT, ANSWER = 10.0, 30.0  # seconds in which a connection stands, and in which something of an answer comes
AT_START = 20.0  # seconds in which failures may pass before step 1
IN_RUN = 300.0  # and later, when more is lost
AFTERWARDS = 2.0  # and while what is of no use any more is deleted
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 20.0  # seconds between two tries; each pause is about twice the one before
TELLING = 5.0  # seconds of a pause from which on the user is told
CONNECTIONS = 8

# Answers that may pass besides those of status 429 and 5xx.
PASSING = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
}
ELSEWHERE = {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "IncorrectEndpoint",
    "PermanentRedirect",
    "TemporaryRedirect",
}
DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden"}
UNKNOWN = {
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
}
ABSENT = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}


class Conflict(Exception):
    """The condition of a write did not hold: the object exists, or is another than the one that was seen."""


@dataclass(frozen=True)
class Stat:
    """An object: its bytes, the tag of its content, and the seconds since it was written, by the store's own clock."""

    size: int
    tag: str
    age: float


@dataclass(frozen=True)
class _Failure:
    """What a request ended with: a code, a reason for the user, and whether it may pass."""

    code: str
    reason: str
    passes: bool
    fix: str


@dataclass
class Bucket:
    """A bucket of S3, or of what speaks as S3 does. Credentials, region and endpoint are the library's to find.

    Every verb raises ParenError with a code E-S3-*, those that read FileNotFoundError for an object that does not
    exist. `patience`: seconds in which a failure may pass. `lease`: what proves that this run may write.
    """

    name: str
    patience: float = field(default=AT_START, compare=False)
    notice: Callable[[str], None] = field(default=lambda text: None, compare=False)
    lease: Lease | None = field(default=None, compare=False)

    def put(self, key: str, content: Bytes, *, replaces: str | None = None, new: bool = False) -> str:
        """Writes an object, and gives the tag of its content. With `new` there must be none, with `replaces` it must be
        that one. Raises `Conflict`."""
        condition = {"IfNoneMatch": "*"} if new else {"IfMatch": replaces} if replaces is not None else {}
        body = bytes(content)
        return str(self._ask("PutObject", key, Body=body, ContentMD5=_md5(body), **condition)["ETag"])

    def get(self, key: str) -> bytes:
        """The content of a small object."""
        return self._read(key)[0]

    def look(self, key: str) -> tuple[bytes, Stat]:
        """The content of a small object, and what it is."""
        content, answer = self._read(key)
        return content, _stat(answer)

    def part(self, key: str, tag: str, begin: int, end: int) -> bytes:
        """Bytes `begin` up to `end` of an object that has to be the one of that tag. Raises `Conflict`."""
        content, _ = self._read(key, Range=f"bytes={begin}-{end - 1}", IfMatch=tag)
        return content

    def stat(self, key: str) -> Stat:
        """What an object is."""
        return _stat(self._ask("HeadObject", key))

    def exists(self, key: str) -> bool:
        """Whether there is an object."""
        try:
            self.stat(key)
        except FileNotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        """Deletes an object, if there is one."""
        self._ask("DeleteObject", key)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so, sorted."""
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = self._ask("ListObjectsV2", prefix, key_as="Prefix", **more)
            found += [str(each["Key"]) for each in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return sorted(found)
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def begin(self, key: str) -> str:
        """Begins an upload in parts; gives its id."""
        return str(self._ask("CreateMultipartUpload", key)["UploadId"])

    def upload(self, key: str, upload: str, number: int, content: bytearray) -> str:
        """Sends a part, by its number from 1; gives its tag."""
        answer = self._ask(
            "UploadPart", key, UploadId=upload, PartNumber=number, Body=content, ContentMD5=_md5(content)
        )
        return str(answer["ETag"])

    def complete(self, key: str, upload: str, tags: list[str]) -> None:
        """Makes the object of the parts that were sent. Its name must never have been used before."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, start=1)]
        try:
            self._ask("CompleteMultipartUpload", key, UploadId=upload, MultipartUpload={"Parts": parts})
        except FileNotFoundError:
            if not self.exists(key):  # it does if the answer to an earlier try was lost
                raise self._refused("CompleteMultipartUpload", key, _other("NoSuchUpload")) from None

    def abort(self, key: str, upload: str) -> None:
        """Gives up an upload, with the parts that were sent."""
        try:
            self._ask("AbortMultipartUpload", key, UploadId=upload)
        except FileNotFoundError:
            return

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Key and id of all uploads under way whose key begins so."""
        found: list[tuple[str, str]] = []
        more: dict[str, str] = {}
        while True:
            page = self._ask("ListMultipartUploads", prefix, key_as="Prefix", **more)
            listed = [(str(each["Key"]), str(each["UploadId"])) for each in page.get("Uploads", ())]
            found += [each for each in listed if each[0].startswith(prefix)]
            if not page.get("IsTruncated"):
                return found
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    # Requests -------------------------------------------------------------------------------------------------------

    @cached_property
    def _client(self) -> Any:
        try:
            import botocore.session  # optional: the extra `s3`
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise ParenError(
                "E-S3-001",
                f"s3://{self.name} needs the package botocore, which is not installed",
                fix="pip install 'paren[s3]'",
            ) from None
        settings = Config(
            connect_timeout=CONNECT,
            read_timeout=ANSWER,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": 1},
            request_checksum_calculation="when_required",  # what stores other than Amazon's understand
            response_checksum_validation="when_required",
        )
        try:
            return botocore.session.get_session().create_client("s3", config=settings)
        except BotoCoreError as error:
            raise self._refused("the configuration", "", _judge(error)) from None
        except ValueError:  # of an endpoint that is no URL, which may hold a password
            raise self._refused("the configuration", "", _other("an endpoint that is no URL")) from None

    def _read(self, key: str, **given: object) -> tuple[bytes, Mapping[str, Any]]:
        """The body is read within a try, as the connection may end inside."""

        def read(answer: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
            body = answer["Body"]
            try:
                return body.read(), answer
            finally:
                body.close()

        return self._try("GetObject", key, lambda: read(self._client.get_object(Bucket=self.name, Key=key, **given)))

    def _ask(self, operation: str, key: str, key_as: str = "Key", **given: object) -> Mapping[str, Any]:
        method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower()
        given = {"Bucket": self.name, key_as: key, **given}
        return self._try(operation, key, lambda: getattr(self._client, method)(**given))

    def _try(self, operation: str, key: str, request: Callable[[], T]) -> T:
        """Makes a request until it succeeds, fails for good, or patience ends."""
        client = self._client  # what it raises has a code already
        from botocore.exceptions import BotoCoreError, ClientError  # optional: the extra `s3`
        from botocore.parsers import ResponseParserError

        begun, pause = time.monotonic(), FIRST_PAUSE
        while True:
            try:
                return request()
            except ClientError as error:
                failure = _judge_answer(error.response, _host(client))
            except BotoCoreError as error:
                failure = _judge(error, _host(client))
            except ResponseParserError:
                failure = _not_answering(f"{_host(client)} gives answers that are not S3's")
            if not failure.passes or time.monotonic() - begun + pause > self.patience:
                raise self._refused(operation, key, failure) from None
            if pause >= TELLING:
                self.notice(f"{operation} of s3://{self.name}/{key}: {failure.reason}; trying again")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _refused(self, operation: str, key: str, failure: _Failure) -> Exception:
        if failure.code == "absent":
            return FileNotFoundError(f"s3://{self.name}/{key} does not exist")
        if failure.code == "conflict":
            return Conflict(f"s3://{self.name}/{key}")
        return ParenError(
            failure.code, f"{operation} of s3://{self.name}/{key} failed: {failure.reason}", fix=failure.fix
        )


def _judge_answer(answer: Mapping[str, Any], host: str) -> _Failure:
    """What a refusal by the store means."""
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    said = re.sub(r"[^A-Za-z0-9.]", "", str(answer.get("Error", {}).get("Code", "")))[:60] or str(status)
    if said in PASSING or status == 429 or (status >= 500 and status != 501):
        return _not_answering(f"{host} answers {said}" + (f" ({status})" if said != str(status) else ""))
    if said == "PreconditionFailed" or status == 412:
        return _Failure("conflict", "", False, "")
    if said == "NoSuchBucket":
        return _Failure("E-S3-004", "the bucket does not exist", False, "create the bucket, or name another")
    if said in ABSENT:
        return _Failure("absent", "", False, "")
    if said in UNKNOWN:
        return _no_credentials(f"the credentials are not accepted ({said})")
    if said in DENIED:
        return _Failure(
            "E-S3-005",
            "access is denied",
            False,
            "allow ListBucket, GetObject, PutObject, DeleteObject and AbortMultipartUpload there",
        )
    if said in ELSEWHERE or status in (301, 307):
        fix = "set AWS_DEFAULT_REGION to the region of the bucket, or AWS_ENDPOINT_URL to its address"
        return _Failure("E-S3-007", f"the bucket is not in the region that was asked ({said})", False, fix)
    if said == "RequestTimeTooSkewed":
        return _Failure("E-S3-007", f"this machine's clock is far from the store's ({said})", False, "set the clock")
    return _other(said)


def _judge(error: Exception, host: str = "") -> _Failure:
    """What an error of the library means, by its class."""
    from botocore import exceptions as of  # optional: the extra `s3`

    if isinstance(error, of.NoCredentialsError):
        return _no_credentials("no credentials were found")
    if isinstance(error, of.PartialCredentialsError):
        return _no_credentials("the credentials are not complete")
    if isinstance(error, of.ProfileNotFound):
        return _no_credentials("the profile does not exist")
    if isinstance(error, of.SSLError):
        return _other(f"no secure connection to {host}")
    if isinstance(error, of.ConnectTimeoutError | of.ReadTimeoutError):
        return _not_answering(f"{host} does not answer in time")
    if isinstance(error, of.IncompleteReadError | of.ResponseStreamingError | of.ConnectionClosedError):
        return _not_answering(f"{host} ends connections")
    if isinstance(error, of.ConnectionError | of.HTTPClientError):
        return _not_answering(f"{host} cannot be reached")
    return (
        _no_credentials(type(error).__name__) if "Credential" in type(error).__name__ else _other(type(error).__name__)
    )


def _not_answering(reason: str) -> _Failure:
    return _Failure("E-S3-006", reason, True, "see to the network and AWS_ENDPOINT_URL, then go on with --resume auto")


def _no_credentials(reason: str) -> _Failure:
    return _Failure("E-S3-003", reason, False, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")


def _other(reason: str) -> _Failure:
    return _Failure("E-S3-007", reason, False, "see docs/object-storage.md for what paren asks of a store")


def _host(client: Any) -> str:
    """The endpoint without what may be secret in it."""
    try:
        parts = urlsplit(str(client.meta.endpoint_url))
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the endpoint"
    return f"{parts.scheme}://{parts.hostname}{port}"


def _stat(answer: Mapping[str, Any]) -> Stat:
    from botocore.utils import parse_timestamp  # optional: the extra `s3`

    now = parse_timestamp(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return Stat(int(answer["ContentLength"]), str(answer["ETag"]), (now - answer["LastModified"]).total_seconds())


def _md5(content: Bytes | bytearray) -> str:
    """What lets the store notice a content that was damaged or cut on its way."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
