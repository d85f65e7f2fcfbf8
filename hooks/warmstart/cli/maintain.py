"""`warmstart maintain`: maintenance of this host's nodes or of the store, started by timers. Root only."""

from __future__ import annotations

import os

import click

from warmstart.cli.cache import tell_counts
from warmstart.cli.output import fail, json_option, show_json, show_table, size, warn
from warmstart.errors import PolicyError, WarmstartError
from warmstart.host.process import be_idle
from warmstart.maintenance.gone import remove_gone
from warmstart.maintenance.node import Report, maintain_node
from warmstart.maintenance.store import locked
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.session import MaintenanceBusy, NotRoot, open_session

PARTLY = 1
NODE_COLUMNS = ("node", "runs", "waited", "orphans", "pruned", "failed")


@click.command("maintain")
@click.option("--node", "only", metavar="NAME", help="Only this node of this host; default: all that have run hooks.")
@click.option(
    "--store", "of_store", is_flag=True, help="Maintain the store instead; run it on one host of the cluster."
)
@json_option
@click.pass_obj
def maintain(installation: Installation, only: str | None, of_store: bool, as_json: bool) -> None:
    """Run this host's maintenance once, as root, at idle priority.

    On each node: harvests and ends runs that wait, and those without an epilog,
    removes leftovers of jobs that are over, and prunes copies of bundles. What a node has left whose
    name the cluster has forgotten goes a month after its last job.

    With --store: removes files of publishers that died, merges bundles, removes bundles that the policy lets expire,
    verifies a thirtieth of all bundles, and evicts images down to images.keep.

    While the file `off` exists beside the policy, it only writes metrics.

    Exit status: 0 all done; 1 a part failed, or another maintenance run is active; 2 not root, or no policy.
    """
    if installation.is_off:
        warn(f"switched off by {installation.off_switch}")
        _write_metrics(installation)
        return
    be_idle()
    if of_store:
        _maintain_store(installation, as_json)
        return
    reports: list[Report] = []
    for node in [only] if only else installation.nodes():
        try:
            reports.append(maintain_node(installation, node, os.environ.get("SLURM_CONF", "")))
        except (PolicyError, NotRoot) as error:
            fail(error, error.hint)
        except WarmstartError as error:  # of this node; the next one is done
            reports.append(Report(node, failed=(str(error),)))
        except OSError as error:
            reports.append(Report(node, failed=(f"{error.filename}: {error.strerror}",)))
    if not only:
        reports += _remove_gone(installation)
    _show(reports, as_json)
    is_written = _write_metrics(installation)
    if not is_written or any(report.failed for report in reports):
        raise click.exceptions.Exit(PARTLY)


def _remove_gone(installation: Installation) -> list[Report]:
    """Remove what nodes left that never return; return a report of what failed, for no node."""
    try:
        failed = remove_gone(installation, os.environ.get("SLURM_CONF", ""))
    except (WarmstartError, OSError) as error:
        return [Report("", failed=(str(error),))]
    return [Report("", failed=tuple(map(str, failed)))] if failed else []


def _write_metrics(installation: Installation) -> bool:
    """Write the host's metrics, also while warmstart is off: they say so. Return whether that succeeded."""
    try:
        current = current_policy(installation)
        if os.geteuid() == 0 and current.policy.paths.metrics is not None:
            from warmstart.maintenance import metrics  # loads prometheus-client

            metrics.write_host(installation, current)
    except WarmstartError as error:
        warn(f"{error} ({error.hint})")
        return False
    return True


def _show(reports: list[Report], as_json: bool) -> None:
    if as_json:
        show_json([report._asdict() for report in reports])
        return
    rows = [(r.node, r.finished, r.ended, r.removed, size(r.pruned), "; ".join(r.failed)) for r in reports]
    show_table(NODE_COLUMNS, rows)


def _maintain_store(installation: Installation, as_json: bool) -> None:
    try:
        with open_session(installation, "maintain") as session, locked(session) as maintenance:
            report = maintenance.all()
            with session.isolated("metrics"):
                if session.policy.paths.metrics is not None:
                    from warmstart.maintenance import metrics

                    metrics.write_store(session)
    except MaintenanceBusy as error:
        warn(str(error))
        raise click.exceptions.Exit(PARTLY) from None
    except (WarmstartError, OSError) as error:
        fail(error, getattr(error, "hint", ""))
    tell_counts(report, as_json)
    if report.failed or session.failures:
        raise click.exceptions.Exit(PARTLY)
