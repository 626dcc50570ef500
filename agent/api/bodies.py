"""Bodies: JSON or msgpack in, JSON or msgpack out, bounded and checked against their types.

The types that decode a request are the ones the OpenAPI document shows. A body is read up to its
limit *after* decompression, so that a small bomb is refused like a big body. msgspec allocates no
more for an array or a map than the bytes that are there, whatever its header claims.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
from aiohttp import StreamReader, web
from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import inspect

from agent.errors import EntryError, Malformed, TooLarge, Unavailable, UnsupportedMedia
from agent.limits import ARRIVING_FREE_BYTES, BODY_TIME_S

JSON = "application/json"
MSGPACK = "application/msgpack"
_MEDIA = {JSON: JSON, MSGPACK: MSGPACK, "application/x-msgpack": MSGPACK}
_CHARSETS = {"utf-8", "utf8", "us-ascii"}
_ENCODINGS = {"gzip", "deflate", "identity"}

Body = TypeVar("Body")
_ERROR = re.compile(r"(?s)(?P<what>.*?)(?: - at `(?P<key>key in )?\$\.?(?P<path>.*)`)?")
_OVER = re.compile(r"of length <= (\d+)")
_IN_BATCH = re.compile(r"entries\[(\d+)\]")


class Decoder(Generic[Body]):
    """Decodes one type of body from JSON and from msgpack."""

    def __init__(self, body: type[Body]) -> None:
        self._body = body
        self._json: Callable[[bytes], Body] = msgspec.json.Decoder(body).decode
        self._msgpack: Callable[[bytes], Body] = msgspec.msgpack.Decoder(body).decode

    def parse(self, data: bytes, media: str) -> Body:
        """The body behind its bytes.

        Raises:
            msgspec.DecodeError, RecursionError: see `refuse`.
        """
        return self._json(data) if media is JSON else self._msgpack(data)

    def decode(self, data: bytes, media: str) -> Body:
        """The body behind its bytes.

        Raises:
            Malformed: not of this type; the field is named, in a batch also the entry's index.
            TooLarge: more items than the type allows.
        """
        try:
            return self._json(data) if media is JSON else self._msgpack(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            refuse(error, self._body)


def refuse(error: Exception, body: Any) -> NoReturn:
    """Turn an error of decoding a type of body into the refusal that names the field."""
    if isinstance(error, RecursionError):
        raise Malformed("the body is nested too deeply") from None
    text = str(error)
    match = _ERROR.fullmatch(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    over = _OVER.search(what)
    if over:
        raise TooLarge(f"{path or 'body'}: more than {over[1]} items in one request") from None
    what = what.replace("`int | float | null`", "an integer").replace("`int | float`", "an integer")
    field = f"{path[:200]}: " if path else ""
    detail = field + (what if what.startswith("JSON") else what[:1].lower() + what[1:])
    at = _IN_BATCH.match(path)
    errors = (EntryError(int(at[1]), "malformed", detail[:300]),) if at else ()
    known = _fields_at(body, path) if what.startswith("Object contains unknown field") else ()
    hint = f"known here: {', '.join(known)}" if known else ""
    raise Malformed(detail, hint=hint, errors=errors) from None


def _fields_at(body: Any, path: str) -> tuple[str, ...]:
    """The fields that an object of a type has at a path, such as `entries[0].score`."""
    found: inspect.Type = inspect.type_info(body)
    for part in filter(None, re.split(r"\.|(?=\[)", path)):
        its = _struct_of(found)
        if part.startswith("["):
            found = getattr(found, "item_type", getattr(found, "value_type", found))
        elif its is not None:
            found = next((each.type for each in its.fields if each.encode_name == part), found)
    its = _struct_of(found)
    return () if its is None else tuple(each.encode_name for each in its.fields)


def _struct_of(type_: inspect.Type) -> inspect.StructType | None:
    """The type itself, or the first of a union, that is an object with fields."""
    options = type_.types if isinstance(type_, inspect.UnionType) else (type_,)
    return next((each for each in options if isinstance(each, inspect.StructType)), None)


def path_of(error: Exception) -> str:
    """The field that a decoding error names; empty where it is the body itself."""
    match = _ERROR.fullmatch(str(error))
    return (match["path"] or "") if match else ""


def media_of(request: web.BaseRequest) -> str:
    """Whether a body is JSON or msgpack, by its Content-Type.

    Nothing else is taken, not even without a type: a page of another site can make a browser send
    forms and plain text to a loopback address, but not these types.

    Raises:
        UnsupportedMedia: neither, or in an encoding that is not known.
    """
    headers = request.headers
    if "Content-Encoding" in headers and headers["Content-Encoding"].lower() not in _ENCODINGS:
        raise UnsupportedMedia(
            f"Content-Encoding: {headers['Content-Encoding'][:40]!r} is not known",
            hint="send the body as it is, or with gzip or deflate",
        )
    given = headers.get("Content-Type", "")
    if given == JSON:
        return JSON
    name, _, parameters = given.partition(";")
    media = _MEDIA.get(name.strip().lower())
    if media is None:
        raise UnsupportedMedia(
            f"Content-Type: {given[:80]!r} where {JSON} or {MSGPACK} is needed",
            hint=f"send the header 'Content-Type: {JSON}'",
        )
    key, _, charset = parameters.partition("=")
    if key.strip().lower() == "charset" and charset.strip(' "').lower() not in _CHARSETS:
        raise UnsupportedMedia(f"Content-Type: charset {charset[:40]!r}; JSON is UTF-8")
    return media


@dataclass(slots=True)
class Arriving:
    """Bodies of one kind that are being received: how many bytes of them are held together."""

    bytes_max: int
    held_bytes: int = 0

    def take(self, size: int) -> None:
        """Hold some more bytes.

        Raises:
            Unavailable: (`busy`) that would be too many; nothing more is held.
        """
        if self.held_bytes + size > self.bytes_max:
            raise Unavailable(
                "busy", "too many messages are arriving at once", hint="try again in a second"
            )
        self.held_bytes += size


async def read_body(
    request: web.BaseRequest, bytes_max: int, arriving: Arriving | None = None
) -> bytes:
    """A request's whole body, decompressed.

    Args:
        arriving: bounds what all bodies of this kind hold together while they arrive.

    Raises:
        TooLarge: over `bytes_max`, before or after decompression; no more than that was kept.
        Malformed: it ended early, did not arrive in time, or its encoding is broken.
        Unavailable: (`busy`) of `arriving`.
    """
    if (request.content_length or 0) > bytes_max:
        raise TooLarge(f"body: {request.content_length} bytes, at most {bytes_max}")
    content = request.content
    try:
        if content.is_eof():  # all of it is here, as nearly always
            return await _received(content, bytes_max, None)
        async with asyncio.timeout(BODY_TIME_S):
            return await _received(content, bytes_max, arriving)
    except TimeoutError:
        raise Malformed(f"body: it did not arrive within {BODY_TIME_S:g} s") from None
    except (ClientPayloadError, web.RequestPayloadError, HttpProcessingError, OSError) as error:
        raise Malformed(f"body: it ended early or its encoding is broken: {error}") from error


async def _received(content: StreamReader, bytes_max: int, arriving: Arriving | None) -> bytes:
    chunks: list[bytes] = []
    size = held = 0
    try:
        while not content.at_eof():
            chunk = await content.readany()
            size += len(chunk)
            if size > bytes_max:
                raise TooLarge(f"body: over {bytes_max} bytes (after decompression)")
            if arriving is not None and size - held > ARRIVING_FREE_BYTES:
                arriving.take(size - held - ARRIVING_FREE_BYTES)
                held = size - ARRIVING_FREE_BYTES
            chunks.append(chunk)
    finally:
        if arriving is not None:
            arriving.held_bytes -= held
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def answer_media(request: web.BaseRequest) -> str:
    """The form of the answer: what Accept asks for, else that of the request's own body."""
    headers = request.headers
    accept = headers.get("Accept", "*/*")
    if "msgpack" in accept:
        return MSGPACK
    if accept == "*/*" and "msgpack" in headers.get("Content-Type", ""):
        return MSGPACK
    return JSON


_to_json = msgspec.json.Encoder().encode
_to_msgpack = msgspec.msgpack.Encoder().encode


def encode(answer: Any, media: str) -> bytes:
    """An answer's bytes."""
    return _to_json(answer) if media is JSON else _to_msgpack(answer)
