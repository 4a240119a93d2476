"""A bucket, and a dictionary that is told the same: through HTTP both always answer the same."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.server.s3parts import Answer, Serving, serving

NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
SEGMENT = st.one_of(
    st.sampled_from(
        ["a", "b", "c", "a b", "%41", "+", "é", "e\u0301", "\U0001f600", "a.txt", "~", "&<>'\"", "\n", "\x01", "..."]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=5).filter(
        lambda text: text not in (".", "..")
    ),
)
KEYS = st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)
BODIES = st.binary(max_size=50) | st.just(b"x" * 200_000)


class Model(RuleBasedStateMachine):
    """The bucket lives on a server that all runs share, as a disk of its own."""

    served: Serving
    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}

    @initialize()
    def begin(self) -> None:
        Model.count += 1
        self.bucket = f"bucket{Model.count}"
        self.served.disk(self.bucket)

    def ask(self, method: str, key: str, body: bytes | None = None, query: str = "", **headers: Any) -> Answer:
        return self.served.ask(method, f"/{self.bucket}/{quote(key)}{query}", body, headers)

    def is_in_the_way(self, key: str) -> bool:
        """Whether a file would have to be where a directory is, or the other way round."""
        others = (other for other in self.objects if other != key)
        return any(other.startswith(f"{key}/") or key.startswith(f"{other}/") for other in others)

    def wrote(self, answer: Answer, key: str, content: bytes) -> None:
        if self.is_in_the_way(key):
            assert (answer.status, answer.code) == (409, "KeyConflict")
            return
        assert answer.status == 200, answer.body
        assert answer.headers["etag"] == f'"{hashlib.md5(content).hexdigest()}"'
        self.objects[key] = content

    @rule(key=KEYS, body=BODIES)
    def put(self, key: str, body: bytes) -> None:
        self.wrote(self.ask("PUT", key, body), key, body)

    @rule(key=KEYS, body=st.binary(max_size=50))
    def append(self, key: str, body: bytes) -> None:
        self.wrote(self.ask("PUT", key, body, "?append=true"), key, self.objects.get(key, b"") + body)

    @rule(key=KEYS, body=BODIES)
    def create(self, key: str, body: bytes) -> None:
        answer = self.ask("PUT", key, body, **{"If-None-Match": "*"})
        if key in self.objects:
            assert (answer.status, answer.code) == (412, "PreconditionFailed")
        else:
            self.wrote(answer, key, body)

    @precondition(lambda self: self.objects)
    @rule(data=st.data(), to=KEYS)
    def copy(self, data: st.DataObject, to: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.objects)))
        source = quote(f"/{self.bucket}/{key}")
        answer = self.ask("PUT", to, None, **{"x-amz-copy-source": source})
        if to == key:
            assert answer.code == "InvalidRequest"
        elif self.is_in_the_way(to):
            assert answer.code == "KeyConflict"
        else:
            assert answer.status == 200
            self.objects[to] = self.objects[key]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.ask("DELETE", key).status == 204
        self.objects.pop(key, None)

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def delete_some(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.objects)), min_size=1))
        root = ElementTree.Element("Delete")
        for key in keys:
            if any(not (c in "\t\n\r" or c >= " ") or c in "\ufffe\uffff" for c in key):
                continue  # what XML cannot hold
            ElementTree.SubElement(ElementTree.SubElement(root, "Object"), "Key").text = key
            self.objects.pop(key, None)
        if len(root):
            body = ElementTree.tostring(root, encoding="utf-8").replace(b"\r", b"&#13;")  # else it is read as "\n"
            answer = self.served.ask("POST", f"/{self.bucket}?delete", body)
            assert answer.status == 200 and b"<Error>" not in answer.body

    @precondition(lambda self: self.objects)
    @rule(data=st.data(), first=st.integers(0, 60), length=st.integers(1, 60))
    def read(self, data: st.DataObject, first: int, length: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.objects)))
        content = self.objects[key]
        assert self.ask("GET", key).body == content
        part = self.ask("GET", key, Range=f"bytes={first}-{first + length - 1}")
        if first < len(content):
            assert (part.status, part.body) == (206, content[first : first + length])
        else:
            assert (part.status, part.code) == (416, "InvalidRange")

    @rule(key=KEYS)
    def look(self, key: str) -> None:
        assert self.ask("HEAD", key).status == (200 if key in self.objects else 404)

    @rule(prefix=KEYS | st.just(""), size=st.integers(1, 4), cut=st.booleans())
    def pages(self, prefix: str, size: int, cut: bool) -> None:
        found: list[str] = []
        token = ""
        while True:
            query = f"?list-type=2&encoding-type=url&max-keys={size}&prefix={quote(prefix)}"
            query += ("&delimiter=/" if cut else "") + (f"&continuation-token={quote(token)}" if token else "")
            root = ElementTree.fromstring(self.served.ask("GET", f"/{self.bucket}{query}").body)
            page = [each.text or "" for each in root.iterfind(f"{NAMESPACE}Contents/{NAMESPACE}Key")]
            page += [each.text or "" for each in root.iterfind(f"{NAMESPACE}CommonPrefixes/{NAMESPACE}Prefix")]
            assert len(page) <= size
            found += map(unquote, page)
            token = root.findtext(f"{NAMESPACE}NextContinuationToken") or ""
            assert (root.findtext(f"{NAMESPACE}IsTruncated") == "true") == bool(token)
            if not token:
                break
        matching = (key for key in self.objects if key.startswith(prefix))
        wanted = {self.common(key, prefix) if cut else key for key in matching}
        assert (len(found), set(found)) == (len(wanted), wanted)

    @staticmethod
    def common(key: str, prefix: str) -> str:
        rest, slash, _ = key[len(prefix) :].partition("/")
        return prefix + rest + slash


@pytest.mark.slow
def test_a_bucket_is_a_dictionary() -> None:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        Model.served = stack.enter_context(serving(home))
        run_state_machine_as_test(
            Model,
            settings=settings(
                max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
