"""Models that an observed job names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.entry_site import NUMBA, EntrySite
from tests.wings.models.values import offering
from warmstart.entry import prolog
from warmstart.host.files import opened_dir
from warmstart.wings.models import look as looking
from warmstart.wings.models import shelf
from warmstart.wings.models.shelf import About


def test_models_are_looked_at_and_not_asked_for(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether the node has copies of each as it is now."""
    site, model = entry_site, tmp_path / "models/tiny"
    model.mkdir(parents=True)
    (model / "model.bin").write_bytes(b"weights of a model")
    for directory in (site.paths.state, site.paths.view):
        os.makedirs(directory, exist_ok=True)
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [os.getgid()])
    paths = site.policy.paths._replace(shelf=f"{tmp_path}/shelf")
    policy = offering(site.policy, model.parent)._replace(
        paths=paths, mode="observe", constant_path="spank", rules=(NUMBA,)
    )
    site.write(policy)
    site.environ(SLURM_JOB_COMMENT=f"warmstart: model={model} model={model}-gone")
    assert prolog.main(site.installation.prefix) == 0
    assert "model" in site.events("job.observed")[0]["steps"]
    first, gone = site.events("model.observed")
    assert (first["model"], first["found"], first["files"], first["bytes"]) == (str(model), False, 1, 18)
    assert (gone["found"], gone["reason"]) == (False, "model-unusable")
    assert not (tmp_path / "shelf").exists()
    seen, whose = looking.look(str(model), [str(model.parent)]), str(os.getuid())
    shelf.make(policy, "n1")
    with opened_dir(shelf.path_of(policy, "n1")) as fd:
        keys = tuple(file.key(whose) for file in seen.files)
        for key in keys:
            Path(f"/proc/self/fd/{fd}/files/{key}").touch()
        shelf.add(fd, seen.key(whose), About(seen.path, "alice", os.getuid(), "", keys, seen.size))
    assert prolog.main(site.installation.prefix) == 0
    assert site.events("model.observed")[-2]["found"]
    assert site.events("model.shown") == []
