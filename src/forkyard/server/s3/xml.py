"""XML in and out: small documents, read without entities or document types, written with everything escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.parsers import expat
from xml.sax.saxutils import escape

from forkyard.server.s3.errors import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
Tree = Sequence[tuple[str, "str | int | bool | Tree"]]
"""An element's children in order: name and text, or name and children."""

_DEEPEST = 8
_MOST_ELEMENTS = 60_000  # 10,000 parts, or 1,000 keys, of a few elements each
# What XML 1.0 cannot hold, not even as a reference.
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_SPECIAL = re.compile(_UNSPEAKABLE.pattern[:-1] + "&<>\r]")


def document(name: str, tree: Tree, *, namespace: bool = True) -> bytes:
    """A whole document."""
    about = f' xmlns="{NAMESPACE}"' if namespace else ""
    pieces = [HEAD, f"<{name}{about}>"]
    _write(tree, pieces)
    pieces.append(f"</{name}>")
    return "".join(pieces).encode()


def _write(tree: Tree, pieces: list[str]) -> None:
    for name, value in tree:
        if isinstance(value, str):
            pieces.append(f"<{name}>{_text(value) if _SPECIAL.search(value) else value}</{name}>")
        elif isinstance(value, bool):
            pieces.append(f"<{name}>{'true' if value else 'false'}</{name}>")
        elif isinstance(value, int):
            pieces.append(f"<{name}>{value}</{name}>")
        else:
            pieces.append(f"<{name}>")
            _write(value, pieces)
            pieces.append(f"</{name}>")


def _text(text: str) -> str:
    # A carriage return would be read as a line feed if it stood there as itself. A quotation mark may stand there, and
    # does: npm's fast-xml-parser reads no more than 1,000 references, and a page has two in the ETag of each object.
    return _UNSPEAKABLE.sub("\ufffd", escape(text, {"\r": "&#13;"}))


def url_encoded(text: str) -> str:
    """A key as `encoding-type=url` has it."""
    return quote(text, safe="/~*")


def parse(body: bytes, root: str) -> Element:
    """The root of a document, its names without namespaces. Raises S3Error (MalformedXML)."""
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.buffer_text = True
    try:
        parser.Parse(body, True)
        found = builder.close()
    except (expat.ExpatError, ParseError, AssertionError, ValueError, LookupError):
        raise S3Error("MalformedXML", f"the body is not a well-formed document <{root}>") from None
    if found.tag != root:
        raise S3Error("MalformedXML", f"the body is <{found.tag[:80]}>, and <{root}> was expected")
    return found


def child_text(element: Element, name: str) -> str | None:
    """The text of the one child of this name; None when there is none. Raises S3Error when there are several."""
    found = element.findall(name)
    if len(found) > 1:
        raise S3Error("MalformedXML", f"<{element.tag}> holds <{name}> more than once")
    return (found[0].text or "") if found else None


def _refuse_doctype(*_: object) -> NoReturn:
    raise S3Error("MalformedXML", "a document type is not read; leave the <!DOCTYPE> out")


class _Builder:
    """Makes the tree, and refuses one that is deep or large."""

    def __init__(self) -> None:
        self._tree = TreeBuilder()
        self._depth = 0
        self._count = 0

    def start(self, tag: str, _attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > _DEEPEST or self._count > _MOST_ELEMENTS:
            raise S3Error("MalformedXML", "the document has too many elements")
        self._tree.start(tag.rpartition("}")[2], {})

    def end(self, tag: str) -> None:
        self._depth -= 1
        self._tree.end(tag.rpartition("}")[2])

    def data(self, text: str) -> None:
        self._tree.data(text)

    def close(self) -> Element:
        return self._tree.close()
