"""HTTP/1.1 without I/O, both roles: bytes in, heads and payload out, or a refusal that says what was wrong.

The parts, from the wire inwards: gate.py (raw bytes), llhttp.py or h11_parser.py behind parsers.py (a head into
fields), rules.py (what the fields mean), heads.py (all of it, in order); framing.py, decoders.py and chunked.py
(bodies); fields.py and serialize.py on the way out.
"""

from .decoders import LengthDecoder, decoder
from .fields import FieldFilter, end_to_end, get, get_all, pairs
from .framing import CHUNKED, NO_BODY, UNTIL_CLOSE, BodyDecoder, Field, Framing, FramingKind
from .gate import HeadLimits
from .heads import HeadReader, RequestHead, ResponseHead, read_request_head, read_response_head
from .parsers import HeadParser, ParserName, default_parser, head_parser
from .serialize import (
    CHUNK_END,
    LAST_CHUNK,
    chunk_prefix,
    field_block,
    last_chunk,
    request_head,
    request_head_of,
    response_head,
    response_head_of,
)
from .target import route_of

__all__ = [
    "CHUNKED",
    "CHUNK_END",
    "LAST_CHUNK",
    "NO_BODY",
    "UNTIL_CLOSE",
    "BodyDecoder",
    "Field",
    "FieldFilter",
    "Framing",
    "FramingKind",
    "HeadLimits",
    "HeadParser",
    "HeadReader",
    "LengthDecoder",
    "ParserName",
    "RequestHead",
    "ResponseHead",
    "chunk_prefix",
    "decoder",
    "default_parser",
    "end_to_end",
    "field_block",
    "get",
    "get_all",
    "head_parser",
    "last_chunk",
    "pairs",
    "read_request_head",
    "read_response_head",
    "request_head",
    "request_head_of",
    "response_head",
    "response_head_of",
    "route_of",
]
