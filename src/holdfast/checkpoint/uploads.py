"""Multipart uploads of S3: a file that is whole but cannot be seen until it is completed, which works only once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any


def supported(fs: Any) -> bool:
    """Whether this fsspec driver speaks S3."""
    return hasattr(fs, "call_s3")


@contextmanager
def begin(fs: Any, path: str, pieces: dict[str, Any]) -> Iterator[Any]:
    """A file that stays an upload when the block ends; `pieces` gets what completing it takes."""
    file = fs.open(path, "wb", autocommit=False)
    try:
        yield file
        file.close()
    except BaseException:
        file.discard()
        with suppress(AttributeError):  # else its finalizer would upload what is buffered
            file.closed = True
        raise
    pieces.update({"id": file.mpu["UploadId"], "parts": [dict(part) for part in file.parts]})


def complete(fs: Any, path: str, pieces: Mapping[str, Any]) -> bool:
    """Make it visible; False when there is no such upload any more: it was completed before."""
    bucket, key, _ = fs.split_path(path)
    try:
        # Asked first: a second completion is answered with success for a while, and by some stores with a failure.
        fs.call_s3("list_parts", Bucket=bucket, Key=key, UploadId=pieces["id"], MaxParts=1)
        fs.call_s3(
            "complete_multipart_upload",
            Bucket=bucket,
            Key=key,
            UploadId=pieces["id"],
            MultipartUpload={"Parts": list(pieces["parts"])},
        )
    except FileNotFoundError as error:
        if not _is_gone(error):
            raise
        return False
    return True


def abort(fs: Any, path: str, pieces: Mapping[str, Any]) -> None:
    """Give it up; it may be gone."""
    bucket, key, _ = fs.split_path(path)
    try:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=pieces["id"])
    except FileNotFoundError as error:
        if not _is_gone(error):
            raise


def _is_gone(error: BaseException) -> bool:
    """Not a bucket that is missing, which has the same type."""
    response = getattr(error.__cause__, "response", {})
    return bool(response.get("Error", {}).get("Code") == "NoSuchUpload")
