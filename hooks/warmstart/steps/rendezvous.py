"""Step `rendezvous`: one address and port for all nodes of a job (docs/reference/rendezvous.md).

The head node reserves ports in its host's ledger and publishes them in the store, where the other nodes poll until the
deadline. Without ports the job runs without a rendezvous, or fails if the rule requires one: a port that another job
may use is never handed out. The ports stay reserved until the job's epilog on the head node, even if its prolog fails,
since another node may already know them. `release` frees them.
"""

from __future__ import annotations

import time

from warmstart.audit import events
from warmstart.errors import NodeError, PolicyError, ResourceError, StoreError, UserError, WarmstartError
from warmstart.host import ports as ledger
from warmstart.host.deadline import Deadline
from warmstart.host.ports import Holder, PortRequest
from warmstart.lean import NamedTuple, suppress
from warmstart.policy.compiled import Rendezvous
from warmstart.record import Record, using_state
from warmstart.steps.contract import Context, Outcome
from warmstart.store.rendezvous import Answer

NAME = "rendezvous"
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
SECONDS_FOR_STORE = 2.0


class NodeShared(ResourceError):
    """The head node is shared, so another job could bind a reserved port first."""

    code = "rendezvous-node-shared"
    template = "no rendezvous port: the job does not have its first node {node} exclusively"
    hint = "submit with --exclusive, or ask the administrators to set rendezvous.shared_nodes"


class NoAnswer(StoreError):
    """The head node did not answer in time."""

    code = "rendezvous-late"
    template = "no rendezvous port from the head node {head} within {seconds} s"
    hint = "check whether its prolog failed or started late (PrologFlags=Alloc), and whether the nodes share the store"


class HeadRefused(ResourceError):
    """The head node could not reserve a port."""

    code = "rendezvous-refused"
    template = "the head node {head} has no rendezvous port for the job: {reason}"
    hint = "see the head node's events in the audit log"


class AnswerUnusable(PolicyError):
    """The head node's answer has a form that this release does not write."""

    code = "rendezvous-unreadable"
    template = "the head node's rendezvous {name} cannot be used: {problem}"
    hint = "install the same release of warmstart on all nodes"


class Required(UserError):
    """The rule requires a rendezvous, and the job could not get one."""

    code = "rendezvous-required"
    template = "{reason}; jobs here do not run without a rendezvous port"
    hint = "submit the job again later; tell the administrators if the problem persists"


class Options(NamedTuple):
    """What the rule grants, and this node's part."""

    rule: Rendezvous
    further: int  # ports in addition to MASTER_PORT
    name: str  # of the answer in the store
    restarts: int
    head: bool  # whether this node reserves the ports
    others: bool  # whether the job has other nodes, which need the answer
    alone: bool  # whether the job has the head node exclusively; used only there
    address: str  # the head node; "" in a heterogeneous job on nodes of components other than the leader's
    nodelist: str  # the job's nodes, or those of the leader's component; "" where `address` is ""


def run(context: Context, options: Options) -> Outcome:
    """Reserve ports, or read those that the head node reserved.

    An error goes into the outcome's `degraded`, as `Required` if the rule requires a rendezvous.
    """
    try:
        outcome = _reserve(context, options) if options.head else _join(context, options)
    except WarmstartError as error:
        outcome = Outcome("skipped", degraded=[error])
    if options.head and options.others:
        outcome = outcome._replace(record={"meeting": options.name})  # a refusal is published, too
    return outcome._replace(degraded=[_by_rule(error, options) for error in outcome.degraded])


def _by_rule(error: WarmstartError, options: Options) -> WarmstartError:
    if options.rule.required and not isinstance(error, NodeError):
        return Required(reason=str(error))
    return error


def _reserve(context: Context, options: Options) -> Outcome:
    try:
        ports = _ports(context, options)
    except WarmstartError as error:
        with suppress(WarmstartError, OSError):  # the others time out
            _publish(context, options, refused=str(error))
        raise
    context.audit.emit(events.RENDEZVOUS_RESERVED, address=options.address, ports=ports)
    # If this fails, other nodes may have read the answer nevertheless. So the ports stay reserved, unused by this node.
    _publish(context, options, ports=ports)
    return _outcome(context.record, options.address, ports)


def _ports(context: Context, options: Options) -> list[int]:
    record, rule = context.record, options.rule
    if not (options.alone or rule.shared_nodes):
        raise NodeShared(node=record.node)
    holder = Holder(record.node, record.job_id, record.run_id, record.uid, record.boot_id)
    request = PortRequest(*rule.ports, 1 + options.further, rule.per_user)
    with using_state(context.paths.ports):
        return ledger.reserve(context.paths.ports, holder, request, options.restarts, _deadline(context, options))


def _publish(context: Context, options: Options, ports: list[int] | None = None, refused: str | None = None) -> None:
    if not options.others:
        return
    record = context.record
    answer = Answer(record.uid, record.cluster, options.nodelist, options.address, ports, refused)
    context.store.publish_rendezvous(options.name, answer, _deadline(context, options))


def _join(context: Context, options: Options) -> Outcome:
    started = time.monotonic()
    answer = _answer(context, options)
    if answer.refused is not None:
        raise HeadRefused(head=answer.address, reason=answer.refused)
    address, ports = answer.address, answer.ports or []
    if not address or len(ports) <= options.further:
        raise AnswerUnusable(name=options.name, problem="it has no address, or too few ports")
    waited = round((time.monotonic() - started) * 1000, 3)
    context.audit.emit(events.RENDEZVOUS_JOINED, address=address, ports=ports, waited_ms=waited)
    return _outcome(context.record, address, ports)


def _answer(context: Context, options: Options) -> Answer:
    """Poll for the head node's answer. Raises `NoAnswer` at the deadline, and the store's errors at once."""
    deadline = _deadline(context, options)
    slow = context.deadline.within(options.rule.wait + SECONDS_FOR_STORE)  # time for the last look itself
    pause = FIRST_PAUSE
    while True:
        answer = context.store.look_for_rendezvous(options.name, slow)
        if answer is not None and _is_for(context, options, answer):
            return answer
        if deadline.expired():
            context.store.head_silent = True
            head = options.address or "of the leading component"
            raise NoAnswer(head=head, seconds=options.rule.wait)
        time.sleep(min(pause, deadline.left()))
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _is_for(context: Context, options: Options, answer: Answer) -> bool:
    """Return whether the answer is for this job and not for an earlier one with the same id."""
    whose = (answer.uid, answer.cluster, answer.nodelist if options.nodelist else "")
    return whose == (context.record.uid, context.record.cluster, options.nodelist)


def _outcome(record: Record, address: str, ports: list[int]) -> Outcome:
    first, *further = ports
    environment = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(first),
        # Shows task-prolog to which job the two belong: sbatch passes an outer job's variables on to the inner one.
        "WARMSTART_RENDEZVOUS": f"{record.view_id}:{address}:{first}",
    }
    if further:
        environment["WARMSTART_PORTS"] = ",".join(map(str, further))
    return Outcome("changed", detail={"address": address, "ports": ports}, environment=environment)


def _deadline(context: Context, options: Options) -> Deadline:
    return context.deadline.within(options.rule.wait)
