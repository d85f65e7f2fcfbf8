"""Step `rendezvous`: one address and port for all nodes of a job (docs/wings/ports.md).

The head node reserves ports in its host's ledger and publishes them in the store, where the other nodes poll until the
deadline. Without ports the job runs without a rendezvous, or fails if the rule requires one: a port that another job
may use is never handed out. The ports stay reserved until the job's epilog on the head node, even if its prolog fails,
since another node may already know them. `end` frees them.
"""

from __future__ import annotations

import os

from warmstart.errors import NodeError, WarmstartError
from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.job import Job
from warmstart.lean import NamedTuple, partial, suppress
from warmstart.plan import NotOffered
from warmstart.policy.keys import Duration, Policy
from warmstart.policy.match import Grant
from warmstart.request import COMMENT, Request, RequestInvalid
from warmstart.run.state import using_state
from warmstart.runner import Refused, Step
from warmstart.slurm import nodes
from warmstart.steps.contract import Context, Outcome
from warmstart.store.barrier import Barrier, take_down
from warmstart.wings.ports import ledger
from warmstart.wings.ports.ledger import Holder, PortRequest, PortsUnavailable

NAME = "rendezvous"
KEY = "rendezvous"  # of a rule
WORD = "ports"  # of a request
LONGEST_NUMBER = 5
_ANSWER = "answer"  # the head node's notice


Ports = tuple[int, int]  # the first and the last one
Count = int
Positive = int


class Rendezvous(NamedTuple):
    """One address and ports for all nodes of a job ([ports](../wings/ports.md))."""

    ports: Ports
    """First and last TCP port of the range to reserve from, both included, 1024 or higher and outside of the head
    node's `ip_local_port_range`. All rules may use the same range."""
    per_job: Count = 8
    """Ports that a job may ask for besides `MASTER_PORT`, at most 64. A job that asks for more is refused."""
    per_user: Positive = 64
    """Ports of one head node that the jobs of one user may hold at the same time."""
    shared_nodes: bool = False
    """Reserve ports also on nodes that the job shares, although a neighbour can take the port before the job binds
    it."""
    wait: Duration = 20
    """How long the other nodes wait for the head node's answer. It is part of the 20 s that a prolog has for everything
    without a budget of its own."""
    required: bool = False
    """A job that cannot have its ports fails with a reason. If false, it runs without, with a notice."""


class Answer(NamedTuple):
    """The answer of the head node to the other nodes of its job's run."""

    address: str  # of the head node
    ports: list[int] = []  # noqa: RUF012 - never mutated
    refused: str = ""  # why no ports were reserved


class Options(NamedTuple):
    """What the rule grants, and this node's part."""

    rule: Rendezvous
    further: int  # ports in addition to MASTER_PORT
    barrier: Barrier  # where the head node says it; without nodes in a heterogeneous job
    restarts: int
    head: bool  # whether this node reserves the ports
    others: bool  # whether the job has other nodes, which need the answer
    alone: bool  # whether the job has the head node exclusively; used only there
    address: str  # the head node; "" in a heterogeneous job on nodes of components other than the leader's


def granted(grant: Grant) -> Rendezvous | None:
    """Return what the last of the matching rules offers that offers anything."""
    offered = grant.own.get(KEY)
    return wire.from_object(Rendezvous, offered[-1]) if offered else None


def planned(policy: Policy, job: Job, grant: Grant, requested: Request) -> Step | None:  # noqa: ARG001 - all wings' shape
    """Return the step if a rule offers it and the job has several nodes or asks for it. Raises `NotOffered`."""
    rule, asked = granted(grant), _asked(requested)
    if asked is not None and (rule is None or asked > rule.per_job):
        most = rule.per_job if rule else "none"
        raise NotOffered(sentence=f"the job asks for {asked} ports; it may have {most}")
    several = job.het_id is not None or nodes.has_several(job.nodelist)
    if rule is None or not (several or asked is not None):
        return None
    # All components of a heterogeneous job use the leader's first node; nodes of the others do not know its name.
    leading = job.id == job.view_id
    address = (nodes.first(job.nodelist) or job.node) if leading else ""
    known = job.nodelist if job.het_id is None else ""  # to all
    options = Options(
        rule=rule,
        further=asked or 0,
        barrier=Barrier.of((job.cluster, job.uid), job.view_id, job.restarts, NAME, known),
        restarts=job.restarts,
        head=address == job.node,
        others=several,
        alone=_has_first_node_alone(job),
        address=address,
    )
    return Step(NAME, partial(run, options=options))


def _has_first_node_alone(job: Job) -> bool:
    """Return whether the job has its first node to itself; meaningful on that node. If in doubt it does not.

    SLURM_JOB_EXCLUSIVE says it since 26.05, SLURM_JOB_OVERSUBSCRIBE from 23.02 to 25.11. 26.05 sets that to NO for jobs
    that share their nodes, too (`get_job_exclusive_display_value` and `get_job_oversubscribe_value` in
    src/common/slurm_protocol_defs.c). On 22.05 a hook knows only the number of processors that the job has on the node
    (`4(x2),2`). If it has all of them, there is no room for a neighbour, unless the partition has OverSubscribe=FORCE
    or YES.
    """
    if job.exclusive:
        return job.exclusive in ("NODE", "TOPO")
    if job.oversubscribe:
        return job.oversubscribe == "NO"
    cpus = job.cpus_per_node.partition(",")[0].partition("(")[0]
    return cpus.isdigit() and int(cpus) >= (os.cpu_count() or 1)


def _asked(requested: Request) -> int | None:
    """Return how many further ports the job asks for. Raises `RequestInvalid`."""
    text = requested.words.get(WORD)
    if text is None:
        return None
    if not text.isdigit() or len(text) > LONGEST_NUMBER:
        raise RequestInvalid(where=COMMENT, word=f"{WORD}={text}"[:80])
    return int(text)


def run(context: Context, options: Options) -> Outcome:
    """Reserve ports, or read those that the head node reserved.

    An error goes into the outcome's `degraded`, as `Refused` if the rule requires a rendezvous.
    """
    try:
        outcome = _reserve(context, options) if options.head else _join(context, options)
    except WarmstartError as error:
        outcome = Outcome(degraded=[error])
    if options.head and options.others:
        outcome = outcome._replace(topics=(options.barrier.path,))  # a refusal is published, too
    return outcome._replace(degraded=[_by_rule(error, options) for error in outcome.degraded])


def _by_rule(error: WarmstartError, options: Options) -> WarmstartError:
    if options.rule.required and not isinstance(error, NodeError):
        return Refused(error, NAME, also="; jobs here do not run without a rendezvous port")
    return error


def _reserve(context: Context, options: Options) -> Outcome:
    try:
        ports = _ports(context, options)
    except WarmstartError as error:
        with suppress(WarmstartError, OSError):  # the others time out
            _publish(context, options, Answer(options.address, refused=str(error)))
        raise
    # If this fails, other nodes may have read the answer nevertheless. So the ports stay reserved, unused by this node.
    _publish(context, options, Answer(options.address, ports))
    return _outcome(options.address, ports)


def _ports(context: Context, options: Options) -> list[int]:
    run, rule = context.run, options.rule
    if not (options.alone or rule.shared_nodes):
        problem = f"no rendezvous port: the job does not have its first node {run.node} exclusively"
        raise PortsUnavailable(problem=problem)
    holder = Holder(run.node, run.job_id, run.run_id, run.uid)
    request = PortRequest(*rule.ports, 1 + options.further, rule.per_user)
    directory = ledger.directory(context.paths)
    with using_state(directory):
        return ledger.reserve(directory, holder, request, options.restarts, _deadline(context, options))


def _publish(context: Context, options: Options, answer: Answer) -> None:
    """Tell the other nodes, in place of what a prolog that was killed has told them: its ports may be others."""
    if options.others:
        deadline = _deadline(context, options)
        context.store.run(deadline, take_down, options.barrier.path)
        options.barrier.begin(context.store, _ANSWER, answer, deadline)


def _join(context: Context, options: Options) -> Outcome:
    barrier, until = options.barrier, _deadline(context, options)
    look = partial(barrier.hear, context.store, _ANSWER, Answer)
    address, ports, refused = barrier.await_head(context.store, look, until, "offered no rendezvous port")
    if refused:
        raise PortsUnavailable(problem=f"the head node {address} has no rendezvous port for the job: {refused}")
    if not address or len(ports) <= options.further:
        raise PortsUnavailable(problem="the head node's rendezvous has no address, or too few ports")
    return _outcome(address, ports)


def _outcome(address: str, ports: list[int]) -> Outcome:
    first, *further = ports
    environment = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(first),
    }
    if further:
        environment["WARMSTART_PORTS"] = ",".join(map(str, further))
    return Outcome(detail={"address": address, "ports": ports}, environment=environment)


def _deadline(context: Context, options: Options) -> Deadline:
    return context.deadline.within(options.rule.wait)
