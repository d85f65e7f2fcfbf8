"""Paths of an installation on a node, and the maximum length of a job's TMPDIR. Hot path.

Installations under different prefixes share nothing: each has its own policy and state. What a job's environment names
has the same path on all nodes of the job (docs/adr/index.md, 69), so workspace and views belong to one slurmd of a
host. Root's other state has the node's name in its path.

What hooks cannot do without, and what ends with a boot as jobs do, lies in /run: a full /var stops no job. What lasts
lies in /var. tmpfiles.d makes both directories, and hooks do where they are missing, as in a pod.
"""

from __future__ import annotations

import os

from warmstart.lean import NamedTuple

# Directory of a run (root, 0700) with the upper, work and view directories of the job's overlays.
SEED = ".seed"

# In a run's directory: the list of what the job sees (`Shown`), and what is mounted for the job to see (root, 0711).
SHOWN, MOUNTED = "shown", "mounted"

# In a run's directory: the caches of images that only its steps name, each a directory of its key with `cache`
# and `.seed` as the run's own has them (root, 0755).
CACHES = "caches"

# What programs add to TMPDIR for their sockets: vLLM `/` and a UUID, 37 bytes; Python's multiprocessing
# `/pymp-XXXXXXXX/listener-XXXXXXXX`, 32.
SOCKET_NAMES = 37
# The longest TMPDIR, in bytes, in which programs can bind sockets: `sun_path` has 108 bytes with the NUL (unix(7)).
LONGEST_TMPDIR = 107 - SOCKET_NAMES
# The longest workspace, in bytes, with which no run's TMPDIR is longer.
LONGEST_WORKSPACE = LONGEST_TMPDIR - len("/4294967295.0a1b2c3d/tmp")


class Shown(NamedTuple):
    """A line of a run's list, six fields between tabs: what the job sees at a path (docs/adr/index.md, 51).

    The SPANK plugin, the hook in Slurm's namespace and enroot's hook mount what root has written there, and know no
    more about it. All fields but the paths are printable ASCII; none is empty or has a tab or a newline.
    """

    mode: str  # `ro` or `rw`
    whose: str  # who can change the names above the target: `root` alone, or the `job`, with whose rights it is opened
    source: str  # a path in the run's directory; NOTHING: what is at the target already
    seen: str  # what was at the target: device, inode, birth in nanoseconds (0: unknown); NOTHING: any;
    # or the image's file: device, inode
    target: str  # a path without links; made if it is missing and root's; NOTHING: a container's root, nowhere else
    otherwise: str  # what the job is told where another one is there, which is left as it is; NOTHING: no word


NOTHING = "-"  # in a field


class Installation(NamedTuple):
    """One installation of warmstart, identified by its prefix."""

    prefix: str

    @property
    def etc(self) -> str:
        """Directory of policy.yaml, conf.d/ and the file `off`."""
        return "/etc/warmstart" if self.prefix == "/usr" else f"{self.prefix}/etc/warmstart"

    @property
    def var(self) -> str:
        """Directory of warmstart's own state on this host."""
        return "/var/lib/warmstart" if self.prefix == "/usr" else f"{self.prefix}/var/lib/warmstart"

    @property
    def runtime(self) -> str:
        """Directory of what ends with a boot; for another prefix than /usr, tmpfiles.d empties it at boot."""
        return "/run/warmstart" if self.prefix == "/usr" else f"{self.prefix}/run/warmstart"

    @property
    def lib(self) -> str:
        """Directory of the releases that are kept, and of the links to the one in force."""
        return f"{self.prefix}/lib/warmstart"

    @property
    def libexec(self) -> str:
        """Directory of the programs that Slurm and pyxis run."""
        return f"{self.prefix}/libexec/warmstart"

    @property
    def policy(self) -> str:
        """The site's policy."""
        return f"{self.etc}/policy.yaml"

    @property
    def off_switch(self) -> str:
        """If this file exists, hooks do nothing."""
        return f"{self.etc}/off"

    @property
    def is_off(self) -> bool:
        """Whether an administrator has switched warmstart off on this host."""
        return os.path.exists(self.off_switch)

    @property
    def compiled_policy(self) -> str:
        """The last good policy in the form that hooks read."""
        return f"{self.var}/policy.json"

    @property
    def enforcement(self) -> str:
        """What the running Slurm was last seen to enforce (`policy.trust`)."""
        return f"{self.var}/enforcement.json"

    @property
    def metrics(self) -> str:
        """Directory of the counters of metrics, and of how far the audit log is counted (0700)."""
        return f"{self.var}/metrics"

    @property
    def view(self) -> str:
        """The views of this host's jobs; as `NodePaths.view`."""
        return f"{self.runtime}/view"

    @property
    def slurm_libraries(self) -> str:
        """Directory in which an administrator may install Python libraries of the Slurm that runs."""
        return f"{self.prefix}/lib/warmstart/slurm"

    def node(self, node: str) -> NodePaths:
        """Return the directories of one node (one slurmd) of this host."""
        return NodePaths(f"{self.var}/{node}", f"{self.runtime}/{node}", f"{self.prefix}/libexec/warmstart")

    def nodes(self) -> list[str]:
        """Return the names of this host's nodes that have run hooks. A host can have several slurmds."""
        names = {name for place in (self.var, self.runtime) if os.path.isdir(place) for name in os.listdir(place)}
        places = [(name, self.node(name)) for name in sorted(names)]
        return [name for name, node in places if os.path.exists(node.began) or os.path.isdir(node.state)]


class NodePaths(NamedTuple):
    """Directories of one node. Owner root, mode 0700 unless another is given."""

    root: str  # 0755, of what lasts
    runtime: str  # 0755, of what ends with a boot
    programs: str  # directory of the installation's hooks and programs, not of this node alone

    @property
    def node(self) -> str:
        """The node's name, as slurmd has it."""
        return os.path.basename(self.root)

    @property
    def background_program(self) -> str:
        """The program that does off the clock of jobs what their hooks had no time for."""
        return f"{self.programs}/background"

    @property
    def began(self) -> str:
        """A file whose mtime is when the first hook after a boot ran; what has it is the directory of a node."""
        return f"{self.root}/began"

    @property
    def imports(self) -> str:
        """How background imports failed lately (`images.imports.requests`)."""
        return f"{self.runtime}/imports"

    @property
    def state(self) -> str:
        """`<jobid>/run.json`: what the prolog recorded for the epilog."""
        return f"{self.runtime}/state"

    @property
    def view(self) -> str:
        """`<jobid>/`: the files that the job's task prolog reads, and only the job's uid. Both directories are 0711."""
        return f"{os.path.dirname(self.runtime)}/view"

    @property
    def stage(self) -> str:
        """Harvested files until they are validated and packed."""
        return f"{self.root}/stage"

    @property
    def queue(self) -> str:
        """What is to be done off the clock of jobs (`warmstart.queue`)."""
        return f"{self.runtime}/queue"

    @property
    def maintenance(self) -> str:
        """Bundles that maintenance packs anew. Only one process uses it at a time."""
        return f"{self.root}/maintenance"

    @property
    def locks(self) -> str:
        """Lock files that are in no other directory of mode 0700."""
        return f"{self.runtime}/locks"

    @property
    def maintained(self) -> str:
        """A file whose mtime is when maintenance last succeeded."""
        return f"{self.root}/maintained"

    @property
    def bundles(self) -> str:
        """Local copies of the store's bundles."""
        return f"{self.root}/bundles"

    @property
    def layers(self) -> str:
        """Mount points of the local copies that jobs were seeded from."""
        return f"{self.root}/layers"

    @property
    def work(self) -> str:
        """What wings are making, each in a directory of its own; nobody misses it."""
        return f"{self.root}/work"

    @property
    def uses(self) -> str:
        """When this node last recorded its use of an image in the store: one empty file per image."""
        return f"{self.root}/uses"

    @property
    def kept(self) -> str:
        """A file that the program of a pod locks which keeps this node (`keeper.keep`)."""
        return f"{self.root}/kept"
