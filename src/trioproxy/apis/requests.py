"""Which reader reads the body of a request, told by its head.

Lives here: that choice. Does not live here: the readers (``fields``, ``coding``).
"""

from __future__ import annotations

from typing import TypeAlias

from trioproxy.apis.coding import EncodedFieldReader
from trioproxy.apis.fields import FieldReader, is_json
from trioproxy.apis.operations import Operation
from trioproxy.apis.responses import is_plain

BodyReader: TypeAlias = FieldReader | EncodedFieldReader


def body_reader(
    operation: Operation,
    content_type: bytes | None,
    content_encoding: bytes | None,
    *,
    includes_usage: bool,
    size_limit: int,
    ratio_limit: int,
) -> BodyReader | None:
    """A reader for the body of a request, None if nobody reads it: of another operation, or of another type.

    :param includes_usage: whether to find out what would make a stream report its usage that was not asked to.
    :param size_limit: bytes that an encoded body may decode to.
    :param ratio_limit: how many times its own bytes that may be.
    """
    form = operation.form
    if form is None or not is_json(content_type):
        return None
    fields = FieldReader(form, includes_usage=includes_usage and operation.stream_options)
    if is_plain(content_encoding):
        return fields
    return EncodedFieldReader(fields, content_encoding or b"", size_limit=size_limit, ratio_limit=ratio_limit)
