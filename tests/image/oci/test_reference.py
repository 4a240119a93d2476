from __future__ import annotations

import pytest

from forkyard.errors import ConfigError
from forkyard.image.oci.reference import Reference, parse_reference

D = "sha256:" + "0123456789abcdef" * 4

# what is written; registry, repository, tag, digest; the short spelling
READ = [
    ("debian", "docker.io", "library/debian", "latest", None, "debian:latest"),
    ("debian:12", "docker.io", "library/debian", "12", None, "debian:12"),
    ("team/image", "docker.io", "team/image", "latest", None, "team/image:latest"),
    ("docker.io/debian:12", "docker.io", "library/debian", "12", None, "debian:12"),
    ("index.docker.io/library/debian:12", "docker.io", "library/debian", "12", None, "debian:12"),
    ("library/a/b", "docker.io", "library/a/b", "latest", None, "library/a/b:latest"),
    (f"debian@{D}", "docker.io", "library/debian", None, D, f"debian@{D}"),
    (f"debian:12@{D}", "docker.io", "library/debian", "12", D, f"debian:12@{D}"),
    ("ghcr.io/a/b/c:v1.0_x", "ghcr.io", "a/b/c", "v1.0_x", None, "ghcr.io/a/b/c:v1.0_x"),
    ("localhost/a", "localhost", "a", "latest", None, "localhost/a:latest"),
    ("localhost:5000/a", "localhost:5000", "a", "latest", None, "localhost:5000/a:latest"),
    ("host:5000/a:t", "host:5000", "a", "t", None, "host:5000/a:t"),
    ("[::1]:5000/a", "[::1]:5000", "a", "latest", None, "[::1]:5000/a:latest"),
    ("a__b/c-d--e.f", "docker.io", "a__b/c-d--e.f", "latest", None, "a__b/c-d--e.f:latest"),
    ("HOST/a", "HOST", "a", "latest", None, "HOST/a:latest"),
]


@pytest.mark.parametrize(("text", "registry", "repository", "tag", "digest", "name"), READ)
def test_a_reference_is_read_as_docker_reads_it(
    text: str, registry: str, repository: str, tag: str | None, digest: str | None, name: str
) -> None:
    found = parse_reference(text)
    assert found == Reference(registry, repository, tag, digest)
    assert found.name == name
    assert parse_reference(found.name) == found
    assert found.asked == (digest or tag)


@pytest.mark.parametrize(
    "text",
    ["", "a b", "/a", "a/", "a//b", "a:", "a:b:c", "a:-x", "Debian", "a@", "a@sha256:12", "a@md5:" + "0" * 32, "-a",
     "a\n", "a/../b", ".", "http://host/a", "ghcr.io/A", "a" * 300, "a:" + "t" * 129, "a@" + D + "0", "\x1b[2J"],
)  # fmt: skip
def test_what_is_no_reference_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="is no reference of an image: ") as caught:
        parse_reference(text)
    assert "\x1b" not in str(caught.value)
