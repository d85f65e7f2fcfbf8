"""Image references: what is taken, what is refused, and that nothing else can happen."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmstart.images.reference import (
    ImageReferenceInvalid,
    ImageRefused,
    check_allowed,
    parse,
)

HEX = "0123456789abcdef" * 4
TAKEN = {
    "ubuntu": "docker.io/library/ubuntu:latest",
    "ubuntu:22.04": "docker.io/library/ubuntu:22.04",
    "docker.io/ubuntu": "docker.io/library/ubuntu:latest",
    "index.docker.io/library/ubuntu": "docker.io/library/ubuntu:latest",
    "team/tool:1": "docker.io/team/tool:1",
    "docker://nvcr.io/nvidia/pytorch:24.05-py3": "nvcr.io/nvidia/pytorch:24.05-py3",
    "nvcr.io#nvidia/pytorch:24.05-py3": "nvcr.io/nvidia/pytorch:24.05-py3",
    "docker://nvcr.io#nvidia/pytorch": "nvcr.io/nvidia/pytorch:latest",
    "docker://registry-1.docker.io#library/ubuntu": "docker.io/library/ubuntu:latest",
    "localhost/x": "localhost/x:latest",
    "127.0.0.1:5000/a/b_c/d--e.f:T_1.x": "127.0.0.1:5000/a/b_c/d--e.f:T_1.x",
    "REG.Example.COM/a:B": "reg.example.com/a:B",
    f"reg.io/a@sha256:{HEX}": f"reg.io/a@sha256:{HEX}",
    f"reg.io/a:1.0@sha256:{HEX}": f"reg.io/a@sha256:{HEX}",
}
REFUSED = {
    "": "the image's name is not lower-case letters, digits and single separators",
    "user@nvcr.io#a/b": "a user name is not allowed in it",
    "docker://user@reg.io/a": "a user name is not allowed in it",
    "reg.io/a@sha512:ab": "what follows the @ is not sha256: and 64 hexadecimal digits",
    f"reg.io/a@sha256:{HEX.upper()}": "what follows the @ is not sha256: and 64 hexadecimal digits",
    f"reg.io/a@sha256:{HEX}\n": "what follows the @ is not sha256: and 64 hexadecimal digits",
    "reg.io/a:": "what follows the last colon is not a tag",
    "reg.io/a:b:c": "what follows the last colon is not a tag",
    "reg.io/a:-x": "what follows the last colon is not a tag",
    "reg.io/a:x\n": "what follows the last colon is not a tag",
    "#a": "there is no registry before the #",
    "reg.io:0/a": "the registry is not HOST or HOST:PORT",
    "reg.io:65536/a": "the registry is not HOST or HOST:PORT",
    "word#a/b": "the registry is not HOST or HOST:PORT",
    "-x.io/a": "the registry is not HOST or HOST:PORT",
    "[::1]:5000/a": "the registry is not HOST or HOST:PORT",
    "\u212aeg.io/a": "the registry is not HOST or HOST:PORT",
    'x";system("id").io/a': "the registry is not HOST or HOST:PORT",
    "reg.io/../a": "the image's name is not lower-case letters, digits and single separators",
    "reg.io/a/": "the image's name is not lower-case letters, digits and single separators",
    "reg.io/A": "the image's name is not lower-case letters, digits and single separators",
    "reg.io/a___b": "the image's name is not lower-case letters, digits and single separators",
    "a" * 256: "the image's name is not lower-case letters, digits and single separators",
    "a" * 513: "longer than 512 characters",
}
LIKELY = st.text(alphabet="ab1./:@#-_ \n", max_size=40) | st.text(max_size=40)


@pytest.mark.parametrize(("text", "canonical"), TAKEN.items())
def test_takes_what_people_write(text: str, canonical: str) -> None:
    assert parse(text).canonical() == canonical


FILES = [
    "/home/me/x.sqsh", "./x.sqsh", "../x.sif", "~/x.sqsh", "cont.sqsh", "images/cont.sqsh", "a.sif", "Cont.squashfs",
]  # fmt: skip


@pytest.mark.report
@pytest.mark.parametrize("text", FILES)
def test_a_file_is_told_so(text: str) -> None:
    """And not that Docker Hub does not have it, or that this cluster does not allow Docker Hub."""
    with pytest.raises(ImageReferenceInvalid, match=r"a file's path begins with / or \./"):
        parse(text)


@pytest.mark.report
@pytest.mark.parametrize("text", ["podman://x", "dockerd://x:1", "oras://reg.io/a", "file:///x"])
def test_a_scheme_that_leads_to_no_registry_is_told_so(text: str) -> None:
    with pytest.raises(ImageReferenceInvalid, match="of all schemes only docker:// leads to a registry"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["reg.io/cont.sqsh", "tool:1.sqsh", "reg.io#a.sif", "team/sqsh", f"x.sif@sha256:{HEX}"]
)
def test_what_only_ends_like_a_file_is_none(text: str) -> None:
    parse(text)


@pytest.mark.threat(1)
@pytest.mark.parametrize(("text", "problem"), REFUSED.items())
def test_refuses_with_a_plain_sentence(text: str, problem: str) -> None:
    with pytest.raises(ImageReferenceInvalid) as raised:
        parse(text)
    assert raised.value.fields["problem"] == problem
    assert str(raised.value).isprintable()


@pytest.mark.threat(1)
@given(LIKELY | st.from_regex(r"(docker://)?[a-z.]{1,9}(:[0-9]{1,5})?[/#][a-z0-9._/-]{1,9}(:\w{1,9})?", fullmatch=True))
@example("docker://docker://a")
@example("0#0")
def test_canonical_is_a_fixed_point(text: str) -> None:
    try:
        reference = parse(text)
    except ImageReferenceInvalid:
        return
    assert parse(reference.canonical()) == reference
    assert reference.canonical().isascii()
    assert not set(reference.canonical()) & set(" \n'\"$`\\;#+=")


def test_allows_only_listed_registries() -> None:
    check_allowed(parse("reg.io:5000/a"), ["nvcr.io", "REG.io:5000"])
    for text in ("reg.io/a", "evil.reg.io:5000/a", "ubuntu"):
        with pytest.raises(ImageRefused, match=r"not one that this cluster allows \(nvcr\.io, reg\.io:5000\)"):
            check_allowed(parse(text), ["nvcr.io", "reg.io:5000"])
