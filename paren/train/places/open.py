"""From what a user calls a place to the place."""

from __future__ import annotations

import re
from pathlib import Path

from paren.text.errors import ParenError
from paren.train.files import Files
from paren.train.places.bucket import BucketFolder
from paren.train.places.disk import DiskFolder
from paren.train.places.object_store import Bucket
from paren.train.places.place import Place

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a scheme has two letters at least, unlike a drive
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")


def open_place(called: str, operations: Files | None = None) -> Place:
    """The place that is called `s3://BUCKET/PREFIX`, or the folder of a path, which `operations` change.

    Nothing is asked of a bucket yet. Raises E-S3-002 for what is neither.
    """
    if not _ADDRESS.match(called):
        return DiskFolder(Path(called), operations or Files())
    bucket, _, prefix = called.removeprefix("s3://").partition("/")
    parts = [part for part in prefix.split("/") if part]
    plain = called.isprintable() and not {".", ".."} & set(parts)
    if not called.startswith("s3://") or not _BUCKET.fullmatch(bucket) or not plain:
        secret = "@" in called or "?" in called  # before an @ may stand a password, behind a ? a signature
        shown = "what was given" if secret else repr(called)
        raise ParenError(
            "E-S3-002",
            f"{shown} is no place for checkpoints: {_fault(called, bucket)}",
            fix="write a folder, or s3://BUCKET/PREFIX as text; credentials come from AWS_* variables or a profile",
        )
    return BucketFolder(Bucket(bucket), "".join(f"{part}/" for part in parts))


def _fault(called: str, bucket: str) -> str:
    """What is wrong with an address; nothing of it is repeated, as it may hold a secret."""
    if not called.startswith("s3://"):
        return "of addresses, only s3:// is known"
    if not called.isprintable():
        return "it has characters that cannot be printed"
    if not bucket:
        return "it names no bucket"
    if not _BUCKET.fullmatch(bucket):
        return "a bucket's name has two or more letters and digits, with . _ - after the first"
    return "the parts of its prefix cannot be . or .."


def in_bucket(called: str | None) -> bool:
    """Whether a place is in a bucket. Raises E-S3-002."""
    return called is not None and isinstance(open_place(called), BucketFolder)
