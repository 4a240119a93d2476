"""Documents in and out: nothing of a key is lost or read as markup, and nothing hostile is expanded."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.xml import document, parse, url_encoded

BOMB = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;&b;">]><Delete><Object><Key>&c;</Key></Object></Delete>'
FILE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&b;</Key></Object></Delete>'

# what XML can hold
TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]).filter(
        lambda c: c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff")
    )
)


@given(TEXT)
def test_a_text_comes_back_as_it_was(text: str) -> None:
    root = ElementTree.fromstring(document("A", [("Key", text), ("Some", [("Key", text)])], namespace=False))
    assert root.findtext("Key") == root.findtext("Some/Key") == text
    body = document("A", [("Key", text)])
    assert parse(body, "A").findtext("Key") == text


@given(st.text())
def test_whatever_a_key_holds_a_document_stays_a_document(text: str) -> None:
    ElementTree.fromstring(document("A", [("Key", text)]))


@given(st.text(st.characters(codec="utf-8")))
def test_an_encoded_key_is_plain_ascii(text: str) -> None:
    assert url_encoded(text).isascii() and url_encoded(text).isprintable() and "<" not in url_encoded(text)


@given(st.binary())
def test_any_bytes_are_a_document_or_refused(body: bytes) -> None:
    with pytest.raises(S3Error) as caught:
        parse(body, "Delete")
    assert caught.value.code == "MalformedXML"


@pytest.mark.parametrize(
    "body",
    [
        BOMB,
        FILE,
        "<Delete>" * 2000 + "</Delete>" * 2000,
        "<Delete>" + "<Object/>" * 70_000 + "</Delete>",
        "<Delete/><Delete/>",
        "<Other/>",
        "<a:Delete/>",
        '<?xml version="1.0" encoding="no-such"?><Delete/>',
        "<Delete>&nbsp;</Delete>",
        "<Delete><Key>&#0;</Key></Delete>",
        "",
    ],
)
def test_a_hostile_document_is_refused(body: str) -> None:
    with pytest.raises(S3Error) as caught:
        parse(body.encode(), "Delete")
    assert caught.value.code == "MalformedXML"


def test_names_are_read_in_any_namespace() -> None:
    for about in ("", ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', ' xmlns="urn:other"'):
        assert parse(f"<Delete{about}><Quiet>true</Quiet></Delete>".encode(), "Delete").findtext("Quiet") == "true"
