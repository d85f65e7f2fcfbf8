"""The section of the report on observed jobs."""

from __future__ import annotations

from warmstart.policy.units import format_duration
from warmstart.report.counting import counted
from warmstart.report.wings import Content, Table
from warmstart.wings.forecast.prediction import Hits, Predicted, Prediction


class Forecast(Prediction):
    """What the runs of observed jobs foretell."""

    def told(self) -> Content | None:
        """Return it, if a job was observed."""
        predicted = self.result()
        return Content(predicted, _table(predicted)) if predicted.jobs else None


SECTIONS = {"observed": Forecast}


def _starts(hits: Hits) -> str:
    known = f"{hits.warm} of {hits.warm + hits.cold}, of {hits.unknown} nobody knows whether they use it"
    return f"{known}; {hits.unused} left out" if hits.unused else known


def _table(predicted: Predicted) -> Table:
    images = predicted.imports + predicted.avoided
    unknown = f"{counted(predicted.saves_unknown, 'image')} without an estimate"
    rows: list[tuple[str, int | str, str]] = [
        ("prologs", predicted.jobs, "on each node of each job"),
        *((f"{hits.name}: warm, if used", hits.percent, _starts(hits)) for hits in predicted.profiles),
        ("imports", predicted.imports, ""),
        ("imports avoided", predicted.avoided, f"of {counted(images, 'image')}"),
        ("time saved on imports", format_duration(predicted.saved_s), unknown),
        *((f"{hits.name}: in time", hits.warm, f"of {hits.warm + hits.cold}") for hits in predicted.others),
        ("jobs refused", predicted.refused, ""),
        ("nodes drained", predicted.drains, ""),
    ]
    return Table("Observed jobs, if they were enforced", rows)
