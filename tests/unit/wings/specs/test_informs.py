"""What a prolog learns from a job's spec."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.lib.node import Node
from tests.lib.runs import a_job
from warmstart.host.deadline import after
from warmstart.policy.keys import Wing
from warmstart.store.client import StoreClient
from warmstart.wings.specs import informs, keys
from warmstart.wings.specs.stored import SpecUnusable


def test_a_spec_is_read_as_the_stores_owner(node: Node) -> None:
    directory = node.base / "specs"
    directory.mkdir(mode=0o755)
    found = {"cluster": "c1", "job_id": 7, "uid": os.getuid(), "restarts": 0, "written": time.time()}
    found |= {"format": 1, "job_name": "nightly", "array": "7_3", "comment": "", "qos": None}
    (directory / "c1.7.json").write_text(json.dumps(found))
    (directory / "c1.7.json").chmod(0o644)
    user = [*node.policy.store_user]
    own = {keys.KEY: {"spec_directory": str(directory), "user": user, "deadline": 60, "conf": None}}
    wings = (Wing("specs", used=True, step="", early=False, end="", informs="specs.informs"),)
    policy = node.policy._replace(own=own, wings=wings)
    job = a_job(cluster="c1", uid=os.getuid())
    store = StoreClient.of(policy, "n1-test")
    informed = informs.informed(policy, job, store, after(60))
    assert (informed.job_name, informed.array) == ("nightly", "7_3")
    assert informs.informed(policy._replace(own={}), job, store, after(60)) == job
    with pytest.raises(SpecUnusable, match="is of run 0 of the job, and this is run 1"):
        informs.informed(policy, job._replace(restarts=1), store, after(60))
