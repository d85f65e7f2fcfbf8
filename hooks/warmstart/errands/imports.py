"""`import KEY`: make one background import that a hook asked for (`images.imports.requests`). Runs as root, for no job.

systemd starts it (packaging/systemd), or the hook does (`host.detached`). It holds the request's lock, so a second
process for the same request ends at once, and one of the node's slots. In the store it is elected as the image's
producer: one node imports for all. It loads the policy in force and believes the request only as far as that policy
permits. It ends with the image in the store, or with a failure that all waiting hooks find.

The next import of this node is started when this one ends. A process that is killed leaves its request: a waiting hook
or maintenance starts it again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from typing import NoReturn, Protocol

from warmstart import wing
from warmstart.audit import events
from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.images import private
from warmstart.images.choice import choose
from warmstart.images.credentials import CredentialsUnusable, login_at
from warmstart.images.importers.base import Importer, ImportFailed
from warmstart.images.imports import making, requests
from warmstart.images.imports.making import Stopped
from warmstart.images.imports.requests import MOST_ATTEMPTS, ImportAbandoned, ImportRequest
from warmstart.images.query import Obtained, Queue, Requester, Site, query_by_rules
from warmstart.images.reference import Reference, check_allowed, parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import Charged
from warmstart.images.store.published import ImageProducer, RememberedFailure
from warmstart.paths import Installation, NodePaths
from warmstart.policy.compiled import Policy
from warmstart.policy.match import serves_repository
from warmstart.session import Session, open_session
from warmstart.slurm.facts import Access
from warmstart.steps.image import tell

MADE = ("imported", "adopted")  # not: found in the store, or left to another host
OVERTIME_S = 60.0  # after its deadline the process is killed: something hangs
FAILED, WRONG_USAGE = 1, 2


class Watcher(Protocol):
    """A wing's look at one import. Neither raises a `WarmstartError`."""

    def progressed(self) -> None:
        """Do what is to be done from time to time while the import runs."""

    def ended(self) -> None:
        """Do what is to be done when the image is there, or cannot be had."""


class ImportingPart(Protocol):
    """`importing.py` of a wing."""

    def watching(self, policy: Policy, access: Access, image: str, cluster: str) -> AbstractContextManager[Watcher]:
        """Watch the import of an image, a canonical reference, that a job of a cluster asked for."""


def main(prefix: str, arguments: list[str]) -> int:
    """Make the import that the request asks for. Return the exit status."""
    if len(arguments) != 1 or not requests.is_key(arguments[0]):
        print("usage: import KEY", file=sys.stderr)  # noqa: T201 - nobody reads it but a person who calls it by hand
        return WRONG_USAGE
    os.umask(0o022)
    installation, key = Installation(prefix), arguments[0]
    try:
        for node in installation.nodes():
            paths = installation.node(node)
            if not installation.is_off and requests.read(paths.imports, key) is not None:
                _import(installation, node, paths, key)
                break
    except WarmstartError as error:
        print(f"warmstart: {error} ({error.hint})", file=sys.stderr)  # noqa: T201 - systemd's journal has it
        return FAILED
    except OSError as error:  # of this node's disk; the request stays, so the next attempt is maintenance's
        print(f"warmstart: the request {key}: {error}", file=sys.stderr)  # noqa: T201 - systemd's journal has it
        return FAILED
    return 0  # or done before, cancelled, or warmstart is off


def _import(installation: Installation, node: str, paths: NodePaths, key: str) -> None:
    with (
        requests.held(paths.imports, key) as is_ours,
        open_session(installation, "import", node) if is_ours else nullcontext() as session,
    ):
        if session is not None:
            queue = Queue.of(paths, session.policy.images)
            request = requests.read(paths.imports, key)
            if request is not None:
                with requests.slot(queue, request) as has_slot:
                    _serve(session, request, installation.slurm_libraries, has_slot=has_slot)
            requests.start_due(queue)


def _serve(session: Session, request: ImportRequest, libraries: str, *, has_slot: bool) -> None:
    if has_slot:
        access = Access(session.policy.paths.scontrol, os.environ.get("SLURM_CONF", ""), libraries)
        parts: list[ImportingPart] = [wing.load(module) for module in session.policy.parts("importing")]
        with ExitStack() as stack:
            watching = [part.watching(session.policy, access, request.reference, request.cluster) for part in parts]
            _Import(session, request, [stack.enter_context(watcher) for watcher in watching]).run()
    else:
        requests.put_back(session.paths.imports, request.key, attempts=max(0, request.attempts - 1))


class _Import:
    """One import of one request, whose lock and slot the caller holds."""

    def __init__(self, session: Session, request: ImportRequest, watchers: Sequence[Watcher]) -> None:
        self._session = session
        self._watchers = watchers
        self._request = request
        self._directory = session.paths.imports
        self._audit = session.audit.bind(job_id=request.job_id, cluster=request.cluster)

    def run(self) -> None:
        """Import the image. All failures are audited and told to those who wait."""
        left = self._request.asked + self._session.policy.images.import_deadline - time.time()
        deadline = after(min(max(left, 0.0), self._session.policy.images.import_deadline))
        signal.signal(signal.SIGTERM, self._stop)
        signal.alarm(int(deadline.left() + OVERTIME_S))
        started = time.monotonic()
        try:
            image = self._obtain(deadline)
            if image is not None and image.how in MADE:
                tell(self._audit, self._request.reference, image, time.monotonic() - started)
            if image is not None:
                self._ended()
        except WarmstartError as error:
            self._failed(error)
        except Stopped as stopped:
            if stopped.error is None:
                raise
            self._failed(stopped.error)
        except Exception:  # noqa: BLE001 - a bug: audited, and told to those who wait
            self._audit.emit(events.HOOK_CRASHED, traceback=traceback.format_exc())
            problem = "a bug in warmstart; the traceback is in the audit log, event `hook.crashed`"
            self._failed(ImportFailed(image=self._request.reference, program="warmstart", problem=problem))
        else:
            requests.drop(self._directory, self._request.key)
        finally:
            signal.alarm(0)

    def _stop(self, number: int, _frame: object) -> NoReturn:
        """End as after an error, so that nothing stays in the scratch directory.

        The request stays, as when the host shuts down, unless somebody has removed it to cancel the import.
        """
        is_cancelled = requests.read(self._directory, self._request.key) is None
        raise Stopped(128 + number, self._abandoned("it was cancelled") if is_cancelled else None)

    def _obtain(self, deadline: Deadline) -> Obtained | None:
        """Return the image, or None if another host imports it."""
        if self._request.is_expired(self._session.policy.images.import_deadline):
            raise self._abandoned(requests.EXPIRED)
        reference, policy = parse(self._request.reference), self._session.policy
        check_allowed(reference, policy.images.registries)
        site = self._site(reference, deadline)
        query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
        query = query._replace(fresh_after=max(query.fresh_after, self._request.fresh_after))
        if query.kind != self._request.kind:
            raise self._abandoned("the policy names another importer now (images.importer)")
        if image := site.look_up(query, "reused", deadline):
            return image
        making.raise_remembered(query, site, deadline)
        flight = making.elect(query, site, deadline)
        if flight is None:
            return None
        self._audit.emit(events.IMAGE_IMPORT_STARTED, image=self._request.reference, attempt=self._request.attempts)
        return making.produce(flight, "reused")

    def _site(self, reference: Reference, deadline: Deadline) -> Site:
        session, request = self._session, self._request
        store = ImageStoreClient(session.store.worker, session.policy.paths.store)
        # The run is this process's own: the epilog of the job that asked removes what its own run left.
        requester = Requester(session.node, session.run_id, request.job_id, request.cluster)
        site = Site.of(session.policy, session.paths, store, requester)
        site = site._replace(charged=Charged(request.user, request.uid, request.account), watch=self._progress)
        if not request.private:
            return site
        credentials = session.policy.images.credentials
        if credentials is None or not serves_repository(
            session.policy, request.private, f"{reference.registry}/{reference.repository}"
        ):
            problem = f"the policy no longer binds {request.private} to it"
            raise CredentialsUnusable(registry=reference.registry, problem=problem)
        importer = partial(_importer_with_login, session.policy, credentials.file, reference.registry)
        return private.site_of(site, request.private, deadline)._replace(importer=importer)

    def _progress(self, _now: ImageProducer) -> None:
        for watcher in self._watchers:
            watcher.progressed()

    def _abandoned(self, problem: str) -> ImportAbandoned:
        return ImportAbandoned(image=self._request.reference, node=self._request.node, problem=problem)

    def _ended(self) -> None:
        for watcher in self._watchers:
            watcher.ended()

    def _failed(self, error: WarmstartError) -> None:
        """Tell the audit and the waiting hooks; drop the request if another attempt would be useless."""
        request, directory = self._request, self._directory
        is_over = (
            isinstance(error, UserError | ImportAbandoned)
            or request.attempts >= MOST_ATTEMPTS
            or request.is_expired(self._session.policy.images.import_deadline)
        )
        self._session.failures.append(error)
        self._ended()
        self._audit.emit(
            events.IMAGE_IMPORT_FAILED,
            image=request.reference,
            attempt=request.attempts,
            again=not is_over,
            error=error.as_audit(),
        )
        with suppress(OSError):  # a full disk: the hooks find the failure in the store, or try themselves
            requests.remember_failure(directory, request.key, RememberedFailure.of(error, request.uid))
        with suppress(OSError):
            if is_over:
                requests.drop(directory, request.key)
            else:
                requests.put_back(directory, request.key, attempts=request.attempts)


def _importer_with_login(policy: Policy, file: str, registry: str) -> Importer:
    return choose(policy.images, policy.import_user, policy.paths.cache, login_at(file, registry))
