"""Import an image that hooks have asked for (`images.imports.requests`), in a process of its own.

In the store it is elected as the image's producer: one node imports for all. It loads the policy in force and believes
the request only as far as that policy permits. It ends with the image in the store, or with a failure that all waiting
hooks find. A process that is killed leaves its request. Runs as root, for no job.
"""

from __future__ import annotations

import signal
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import NoReturn

from warmstart.audit import events
from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import read_small
from warmstart.images import private
from warmstart.images.choice import choose
from warmstart.images.credentials import CredentialsUnusable, login_at
from warmstart.images.importers.base import Importer, ImportFailed
from warmstart.images.imports import making, requests
from warmstart.images.imports.making import Stopped
from warmstart.images.imports.requests import IMPORTS, MOST_ATTEMPTS, ImportAbandoned, ImportRequest
from warmstart.images.query import Obtained, Requester, Site, query_by_rules
from warmstart.images.reference import Reference, check_allowed, parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import IMPORT_S, Charged
from warmstart.images.store.published import RememberedFailure
from warmstart.policy.keys import Policy
from warmstart.policy.match import including
from warmstart.queue import DONE, LATER, Item, Outcome, Queue
from warmstart.session import Session
from warmstart.steps.image import tell_import

KIND = IMPORTS
MEMORY_EVENTS = "/sys/fs/cgroup/memory.events"  # of a container; a whole machine has none there
_LONGEST_EVENTS = 4096
OVERTIME_S = 60.0  # after its deadline the process is killed: something hangs


def attempt(session: Session, item: Item) -> Outcome:
    """Make one attempt at an import."""
    request = Queue(session.paths, IMPORTS).read(item, ImportRequest)
    if request is None:
        return DONE
    return _Import(session, item, request).run()


class _Import:
    """One import of one request."""

    def __init__(self, session: Session, item: Item, request: ImportRequest) -> None:
        self._session = session
        self._item = item
        self._request = request
        self._audit = session.audit.bind(job_id=request.job_id, cluster=request.cluster)

    def run(self) -> Outcome:
        """Import the image. All failures are audited and told to those who wait."""
        left = self._request.asked + IMPORT_S - time.time()
        deadline = after(min(max(left, 0.0), IMPORT_S))
        signal.signal(signal.SIGTERM, self._stop)
        signal.alarm(int(deadline.left() + OVERTIME_S))
        started = time.monotonic()
        try:
            image = self._obtain(deadline)
            if image is not None and image.how == "imported":  # not: found in the store
                self._tell(image, started)
            if image is not None:
                with suppress(OSError):  # then doctor warns of it for an hour
                    requests.forget_failure(self._session.paths, self._request.image)
            if image is None or image.how == "imported":
                self._drop_others()
        except WarmstartError as error:
            return self._failed(error)
        except Stopped as stopped:
            if stopped.error is None:
                raise
            return self._failed(stopped.error)
        except Exception:  # noqa: BLE001 - a bug: audited, and told to those who wait
            self._audit.say(traceback=traceback.format_exc())
            problem = "a bug in warmstart; the traceback is in the audit log"
            return self._failed(ImportFailed(image=self._request.reference, program="warmstart", problem=problem))
        finally:
            signal.alarm(0)
        return DONE

    def _tell(self, image: Obtained, started: float) -> None:
        name = self._request.reference
        tell_import(self._audit, name, image)
        took = round((time.monotonic() - started) * 1000, 3)
        self._audit.emit(
            events.IMAGE_IMPORTED,
            image=name,
            digest=image.digest,
            path=image.path,
            bytes=image.size,
            waited_ms=round(image.waited_s * 1000),
            duration_ms=took,
        )

    def _stop(self, number: int, _frame: object) -> NoReturn:
        """End as after an error, so that nothing stays in the scratch directory.

        The request stays, as when the host shuts down, unless somebody has removed it to cancel the import.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        is_cancelled = Queue(self._session.paths, IMPORTS).find(self._item.key) is None
        raise Stopped(128 + number, self._abandoned("it was cancelled") if is_cancelled else None)

    def _obtain(self, deadline: Deadline) -> Obtained | None:
        """Return the image, or None if another host imports it."""
        if self._request.is_expired():
            raise self._abandoned(requests.EXPIRED)
        if self._item.attempts > MOST_ATTEMPTS:
            raise self._abandoned(f"its process has died {MOST_ATTEMPTS} times{_killed_for_memory()}")
        reference, policy = parse(self._request.reference), self._session.policy
        check_allowed(reference, policy.images.allowed)
        site = self._site(reference, deadline)
        query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
        query = query._replace(fresh_after=max(query.fresh_after, self._request.fresh_after))
        if query.kind != self._request.kind:
            raise self._abandoned("the policy names another importer now (images.importer)")
        if image := site.look_up(query, "reused", deadline):
            return image
        making.raise_remembered(query, site, deadline)
        with making.elected(query, site, deadline) as flight:
            return making.produce(flight, "reused") if flight else None

    def _site(self, reference: Reference, deadline: Deadline) -> Site:
        session, request = self._session, self._request
        store = ImageStoreClient(session.store.worker, session.policy.paths.store)
        # The run is this process's own: the epilog of the job that asked removes what its own run left.
        requester = Requester(session.node, session.run_id, request.job_id, request.cluster)
        site = Site.of(session.policy, session.paths, store, requester)
        site = site._replace(charged=Charged(request.user, request.uid))
        if not request.private:
            return site
        credentials = session.policy.images.credentials
        bound = including(session.policy, f"{reference.registry}/{reference.repository}")
        if credentials is None or request.private not in [item.name for item in bound]:
            problem = f"the policy no longer binds {request.private} to it"
            raise CredentialsUnusable(registry=reference.registry, problem=problem)
        importer = partial(_importer_with_login, session.policy, credentials.file, reference.registry)
        return private.site_of(site, request.private, deadline)._replace(importer=importer)

    def _abandoned(self, problem: str) -> ImportAbandoned:
        return ImportAbandoned.of(self._request.reference, self._session.node, problem)

    def _drop_others(self) -> None:
        """Drop the requests of all others who want the image: they have waited for this attempt."""
        with suppress(OSError):
            requests.drop_others(self._session.paths, self._item)

    def _failed(self, error: WarmstartError) -> Outcome:
        """Tell the audit and the waiting hooks; the request goes if another attempt would be useless."""
        session, request, attempts = self._session, self._request, self._item.attempts
        failure = RememberedFailure.of(error, request.uid)
        is_over = isinstance(error, UserError | ImportAbandoned) or attempts >= MOST_ATTEMPTS or request.is_expired()
        session.failures.append(error)
        self._audit.emit(
            events.IMAGE_IMPORT_FAILED,
            image=request.reference,
            attempt=attempts,
            again=not is_over,
            error=error.as_audit(),
        )
        with suppress(OSError):  # a full disk: the hooks find the failure in the store, or try themselves
            requests.remember_failure(session.paths, request.image, failure)
        if failure.uid < 0 and not isinstance(error, ImportAbandoned):
            self._drop_others()
        return DONE if is_over else LATER


def _importer_with_login(policy: Policy, file: str, registry: str) -> Importer:
    return choose(policy.images, policy.import_user, policy.paths.cache, login_at(file, registry))


def _killed_for_memory() -> str:
    """Return how many processes of this container the kernel has killed since its start, "" if none (cgroup-v2)."""
    with suppress(OSError, ValueError):
        for line in read_small(MEMORY_EVENTS, _LONGEST_EVENTS).splitlines():
            name, count = line.split()
            if name == b"oom_kill" and int(count):
                return f"; the kernel has killed {int(count)} processes for want of memory here"
    return ""
