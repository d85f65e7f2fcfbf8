"""The job as Slurm describes it in a hook's environment, parsed once and strictly.

Verified, because Slurm sets them (docs/architecture.md, rule 5): id, uid, gid, user, node, partition, node list.
Claimed, because users can forge them: account and QOS (unless the site enforces associations), comment, job name,
array, constraints and every `SPANK_*`. slurmd does not pass the job name, the array and (before 26.05) the QOS to a
prolog: a wing may (`entry.prolog`). Else they are None, unknown, which differs from "".
Source for the variables of each Slurm version: prolog_epilog.html, and `_build_env` in prep_script_slurmd.c.
"""

from __future__ import annotations

from warmstart.errors import PolicyError
from warmstart.lean import Mapping, NamedTuple

# Sets instead of patterns: compiling three patterns takes a tenth of a warm prolog.
_ALNUM = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_IN_NODE = _ALNUM | frozenset("_.-")
_LONGEST_USER = 256
PYXIS_IMAGE = "SPANK__SLURM_SPANK_OPTION_pyxis_container_image"
# Set by packaging/spank; without the plugin users can set them too (CVE-2021-31215).
WARM_IMAGE, WARM_PROFILE = "SPANK_WARM_IMAGE", "SPANK_WARM_PROFILE"
WARM_FRESH, WARM_REFRESH = "SPANK_WARM_FRESH", "SPANK_WARM_REFRESH"
WARM_CACHE = "SPANK_WARM_CACHE"
NO_WARM = "SPANK_NO_WARM"
STEP_NODES = "SLURM_STEP_NODELIST"  # in a step's environment: its nodes, as a hostlist

# The first id that `srun --no-allocate` makes (MIN_NOALLOC_JOBID in src/common/slurm_protocol_api.h, 22.05 to 26.05).
# slurmctld gives no such id: MaxJobId ends far below (slurm.conf(5)).
_NOT_ALLOCATED = 0xFFFF0000


class JobUnreadable(PolicyError):
    """A variable that Slurm sets for hooks is missing or malformed."""

    code = "job-unreadable"
    template = "{variable} is {problem}"
    hint = "let Slurm start the hook, or set Slurm's variables by hand (docs/operations/runbook.md)"


class Job(NamedTuple):
    """What a hook's environment says about its job."""

    id: int
    uid: int
    gid: int
    user: str
    node: str
    cluster: str
    partition: str
    account: str  # "" when unset
    nodelist: str  # Slurm's compressed host list, "" when unknown
    het_id: int | None  # the leader's job id of a heterogeneous job
    comment: str  # claimed
    pyxis_image: str  # claimed
    comment_known: bool = True  # slurmd passes the comment since 22.05
    qos: str | None = None
    job_name: str | None = None  # claimed
    array: str | None = None  # JOBID_TASKID of an array's task
    warm_image: str = ""  # claimed: --warm-image
    warm_profile: str = ""  # claimed: --warm-profile
    warm_fresh: bool = False  # claimed: --warm-fresh
    warm_refresh: bool = False  # claimed: --warm-refresh
    warm_cache: str = ""  # claimed: --warm-cache
    no_warm: bool = False  # claimed: --no-warm
    restarts: int = 0  # the same on all nodes of one run
    cpus_per_node: str = ""  # as Slurm writes it: 4(x2),2
    oversubscribe: str = ""  # since 23.02; "NO": the job has its nodes exclusively, if `exclusive` is ""
    exclusive: str = ""  # since 26.05: NODE, TOPO, USER, MCS or NO

    @property
    def view_id(self) -> int:
        """The job id that the job's tasks see: in a heterogeneous job the leader's."""
        return self.id if self.het_id is None else self.het_id

    @property
    def is_allocated(self) -> bool:
        """Whether slurmctld knows the job. `srun --no-allocate`, for root and SlurmUser, makes an id of its own."""
        return self.id < _NOT_ALLOCATED

    def as_audit(self) -> dict[str, object]:
        """Return the fields of every audit line of this job."""
        return {
            "cluster": self.cluster,
            "node": self.node,
            "job_id": self.id,
            "uid": self.uid,
            "user": self.user,
            "partition": self.partition,
            "account": self.account,
        }


def from_environment(environ: Mapping[str, str]) -> Job:
    """Parse the environment of a prolog or epilog. Raises `JobUnreadable`, which names the first bad variable."""
    het = environ.get("SLURM_HET_JOB_ID")
    return Job(
        id=_number(environ, "SLURM_JOB_ID", least=1),
        uid=_number(environ, "SLURM_JOB_UID"),
        gid=_number(environ, "SLURM_JOB_GID"),
        user=_user(environ),
        node=_name(environ, "SLURMD_NODENAME", _IN_NODE, 255),
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        account=_unset(environ.get("SLURM_JOB_ACCOUNT", "")),
        # 22.05 sets only SLURM_NODELIST; SLURM_JOB_NODELIST exists since 23.02.
        nodelist=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""),
        het_id=_number(environ, "SLURM_HET_JOB_ID", least=1) if het else None,
        comment=_unset(environ.get("SLURM_JOB_COMMENT", "")),
        pyxis_image=environ.get(PYXIS_IMAGE, ""),
        warm_image=environ.get(WARM_IMAGE, ""),
        warm_profile=environ.get(WARM_PROFILE, ""),
        warm_fresh=bool(environ.get(WARM_FRESH)),
        warm_refresh=bool(environ.get(WARM_REFRESH)),
        warm_cache=environ.get(WARM_CACHE, ""),
        no_warm=bool(environ.get(NO_WARM)),
        # The comment is set only if the job has one. The restart count exists since the same release and is always set.
        comment_known="SLURM_JOB_RESTART_COUNT" in environ,
        qos=_unset(environ["SLURM_JOB_QOS"]) if "SLURM_JOB_QOS" in environ else None,
        restarts=_number(environ, "SLURM_JOB_RESTART_COUNT") if environ.get("SLURM_JOB_RESTART_COUNT") else 0,
        cpus_per_node=environ.get("SLURM_JOB_CPUS_PER_NODE", ""),
        oversubscribe=environ.get("SLURM_JOB_OVERSUBSCRIBE", ""),
        exclusive=environ.get("SLURM_JOB_EXCLUSIVE", ""),
    )


def _unset(value: str) -> str:
    # Slurm writes the literal "(null)" for an attribute that the job does not have (seen on 22.05).
    return "" if value == "(null)" else value


def _number(environ: Mapping[str, str], variable: str, least: int = 0) -> int:
    text = environ.get(variable)
    if text is None:
        raise JobUnreadable(variable=variable, problem="not set")
    plain = text.isascii() and text.isdigit() and len(text) <= 10
    if not plain or not least <= int(text) < 2**32 - 1:
        raise JobUnreadable(variable=variable, problem=f"not a valid number: {text!r}")
    return int(text)


def _user(environ: Mapping[str, str]) -> str:
    r"""Return the user's name as it is: Winbind and SSSD have `CORP\alice`, `alice smith`, `alice@corp.example.com`."""
    text = environ.get("SLURM_JOB_USER")
    if text is None:
        raise JobUnreadable(variable="SLURM_JOB_USER", problem="not set")
    if not 0 < len(text) <= _LONGEST_USER or "/" in text or not text.isprintable():
        raise JobUnreadable(variable="SLURM_JOB_USER", problem=f"not a plain name: {text!r}")
    return text


def _name(environ: Mapping[str, str], variable: str, characters: frozenset[str], longest: int) -> str:
    """Return a name that is safe as a path component: it begins with a letter, a digit or `_`."""
    text = environ.get(variable)
    if text is None:
        raise JobUnreadable(variable=variable, problem="not set")
    if not 0 < len(text) <= longest or not characters.issuperset(text) or text[0] in ".@+-":
        raise JobUnreadable(variable=variable, problem=f"not a plain name: {text!r}")
    return text
