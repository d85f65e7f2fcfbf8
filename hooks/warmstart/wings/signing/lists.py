"""What this host believes of signed lists: it checks signatures, and remembers the last list of each scope. As root.

    <var>/signed/                   root, 0700; all nodes of the host share it
        <scope>.json                the last list whose signature held, its signature, and the keys that it was held to

The store's owner reads a list, which is nothing but bytes until `ssh-keygen -Y verify` has accepted it, as the
validator, without rights. A list that this host remembers needs no such child: the bytes are compared. A list that does
not hold leaves the remembered one in use until that expires; `problem` says so.
"""

from __future__ import annotations

import time

from warmstart.errors import UserError, WarmstartError
from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import ensure_dir, opened_dir, opened_lock, read_small, replace_file, wait_flock
from warmstart.lean import Callable, NamedTuple, dumps, suppress
from warmstart.policy.compiled import Policy
from warmstart.store.layout import StoreFailed
from warmstart.wings.signing import signatures, stored
from warmstart.wings.signing.settings import settings
from warmstart.wings.signing.stored import Envelope, SignedList

AHEAD_S = 3600.0  # by which the signer's clock may be ahead
CHECKING_S = 10.0
REUSED_S = 5.0  # a prolog asks once for each profile
_STORE_ID = "store-id"
_LARGEST = 2 * stored.LARGEST
_Read = Callable[[], Envelope | None]


class NotSigned(UserError):
    """A list could not be signed, or may not be."""

    code = "not-signed"
    template = "the list of the scope {scope} is not signed: {problem}"
    hint = "docs/wings/signing.md says what signing needs"


class Verdict(NamedTuple):
    """What this host makes of a scope's list."""

    list: SignedList | None  # the one to go by; None: nothing of the scope may be used
    problem: str  # why the store's list does not count; "" if it does


class _Known(NamedTuple):
    text: str
    signature: str
    keys: list[str]  # of the policy, when it was checked


class SignedLists:
    """The signed lists of one store."""

    def __init__(self, policy: Policy, var: str) -> None:
        """`var` is the directory of the installation's state."""
        self._keys = settings(policy).keys
        self._validator = policy.validate_user
        self._var = var
        self._directory = f"{var}/signed"
        self._recent: dict[str, tuple[float, Verdict]] = {}  # scope → when it was found, and what

    def current(self, scope: str, read: _Read, deadline: Deadline) -> Verdict:
        """Return what to take from a scope; `read` asks the store's owner for its list. Raises `WorkerSilent`."""
        at, verdict = self._recent.get(scope, (0.0, Verdict(None, "")))
        if at and time.monotonic() - at < REUSED_S:
            return verdict
        verdict = self._current(scope, read, deadline)
        self._recent[scope] = (time.monotonic(), verdict)
        return verdict

    def forget_recent(self) -> None:
        """Look at the store again when asked next."""
        self._recent.clear()

    def _current(self, scope: str, read: _Read, deadline: Deadline) -> Verdict:
        problem = ""
        there = None
        try:
            there = read()
        except StoreFailed as error:
            problem = str(error)
        known = self._known(scope)
        if there is None or known is None or there.text != known.text or known.keys != self._keys:
            try:
                known, refused = self._accepted(scope, there, deadline)
                problem = problem or refused
            except (OSError, WarmstartError) as error:
                known = known if known and known.keys == self._keys else None
                problem = problem or f"its signature cannot be checked: {error}"
        if known is None:
            return Verdict(None, problem)
        made = stored.checked(known.text)
        now = time.time()
        if made.expires <= now:
            return Verdict(None, problem or f"its list has expired, {_ago(now - made.expires)} ago")
        if made.made > now + AHEAD_S:
            return Verdict(None, f"its list was made {_ago(made.made - now)} from now, by this host's clock")
        return Verdict(made, problem and f"{problem}; the list with the serial {made.serial} stays in use")

    def _accepted(self, scope: str, there: Envelope | None, deadline: Deadline) -> tuple[_Known | None, str]:
        """Return the list to go by, the store's if it holds, and why it does not."""
        with opened_lock(self._directory, ".lock") as lock:
            if not wait_flock(lock, deadline.within(CHECKING_S)):
                raise TimeoutError("another process of this host is still at it")
            known = self._held_to_keys(scope, deadline)
            if there is None:
                return known, "there is no signed list"
            if known and known.text == there.text:
                return known, ""
            if not self.holds(there, deadline):
                return known, "no key of the policy has signed its list"
            if problem := self._refusal(scope, there.text):
                return known, problem
            known = _Known(there.text, there.signature, self._keys)
            self._remember(scope, known)
            return known, ""

    def _held_to_keys(self, scope: str, deadline: Deadline) -> _Known | None:
        """Return the remembered list, if a key that the policy has now has signed it."""
        known = self._known(scope)
        if known is None or known.keys == self._keys:
            return known
        if not self.holds(Envelope(known.text, known.signature), deadline):
            return None
        known = known._replace(keys=self._keys)
        self._remember(scope, known)
        return known

    def _refusal(self, scope: str, text: str) -> str:
        """Return why a list that a key has signed does not count here; "" if it does."""
        try:
            made = stored.checked(text)
        except ValueError as error:
            return f"its list is of another form: {error}"
        known = self.remembered(scope)
        store = known.store if known else self.store_id()
        if made.scope != scope:
            return f"its list was signed for the scope {made.scope!a}"
        if store and made.store != store:
            return f"its list was signed for another store, with the id {made.store!a}"
        if known and made != known and made.serial <= known.serial:
            how = "is older than" if made.serial < known.serial else "differs from"
            return f"its list with the serial {made.serial} {how} the one with {known.serial} that this host has seen"
        return ""

    def remembered(self, scope: str) -> SignedList | None:
        """Return the last list of a scope that held, by whatever keys."""
        known = self._known(scope)
        return stored.checked(known.text) if known else None

    def store_id(self) -> str:
        """Return the id of the store that this host remembers, "" if it remembers none."""
        try:
            return read_small(f"{self._var}/{_STORE_ID}", 64).decode(errors="replace")
        except OSError:
            return ""

    def holds(self, envelope: Envelope, deadline: Deadline) -> bool:
        """Return whether a key of the policy has signed the text; raises `OSError`, or why ssh-keygen did not run."""
        by = deadline.within(CHECKING_S)
        return signatures.holds(self._keys, envelope.text, envelope.signature, self._validator, by)

    def _known(self, scope: str) -> _Known | None:
        """Return what root has remembered of a scope."""
        with suppress(OSError, ValueError):
            known = wire.from_object(_Known, wire.parse(read_small(f"{self._directory}/{scope}.json", _LARGEST)))
            stored.checked(known.text)
            return known
        return None

    def _remember(self, scope: str, known: _Known) -> None:
        """Write down a list; on a full disk this host believes it without remembering it."""
        with suppress(OSError):
            ensure_dir(self._directory, 0o700)
            with opened_dir(self._directory) as fd:
                replace_file(fd, f"{scope}.json", dumps(known._asdict()).encode(), 0o600)


def _ago(seconds: float) -> str:
    return f"{seconds / 86400:.0f} days" if seconds >= 86400 else f"{seconds / 3600:.1f} hours"
