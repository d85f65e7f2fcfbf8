"""Signatures of OpenSSH, made and checked by `ssh-keygen -Y`: with a file, an agent or a token. Runs as root.

A signature that somebody else wrote is parsed by ssh-keygen, which therefore checks it under an account without rights.
"""

from __future__ import annotations

import os

from warmstart.errors import UserError
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import write_all
from warmstart.host.identity import Identity
from warmstart.lean import Sequence

SSH_KEYGEN = "/usr/bin/ssh-keygen"
PURPOSE = "warmstart"  # a signature that was made for another purpose is none
_PASSED = ("SSH_AUTH_SOCK", "HOME", "TERM")


class SigningFailed(UserError):
    """ssh-keygen made no signature."""

    code = "signing-failed"
    template = "ssh-keygen did not sign with {key}: {problem}"
    hint = "check the key's file; of a key in an agent, SSH_AUTH_SOCK (sudo --preserve-env=SSH_AUTH_SOCK)"


def holds(keys: Sequence[str], text: str, signature: str, checker: Identity, deadline: Deadline) -> bool:
    """Return whether one of the public keys has signed a text; raises `OSError`, or why ssh-keygen did not run."""
    allowed = "".join(f'{PURPOSE} namespaces="{PURPOSE}" {key}\n' for key in keys)
    descriptors: list[int] = []
    try:
        descriptors.extend(map(_file, (allowed, signature, text)))
        keys_fd, signature_fd, text_fd = descriptors
        argv = [SSH_KEYGEN, "-Y", "verify", "-f", f"/proc/self/fd/{keys_fd}"]
        argv += ["-I", PURPOSE, "-n", PURPOSE, "-s", f"/proc/self/fd/{signature_fd}"]
        done = process.run(argv, deadline=deadline, identity=checker, keep=(keys_fd, signature_fd), stdin=text_fd)
        return done.status == 0
    except process.ProgramMissing as error:  # no fault that drains a node
        raise OSError(str(error)) from error
    finally:
        for fd in descriptors:
            os.close(fd)


def sign(key: str, text: str, deadline: Deadline) -> str:
    """Return the signature of a text; raises `SigningFailed`. ssh-keygen asks for a passphrase on the terminal itself.

    `key` is the path of a private key, or of a public one whose private key an agent has.
    """
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    fd = _file(text)
    try:
        argv = [SSH_KEYGEN, "-Y", "sign", "-q", "-n", PURPOSE, "-f", os.path.abspath(key)]
        done = process.run(argv, deadline=deadline, env=passed, stdin=fd)
    finally:
        os.close(fd)
    if done.status:
        raise SigningFailed(key=key, problem=done.complaint())
    return done.stdout.decode("ascii", "replace")


def _file(text: str) -> int:
    fd = os.memfd_create("signed")
    write_all(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
