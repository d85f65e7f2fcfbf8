"""Sample values that unit tests share."""

from warmstart.job import Job


def a_job(**changes: object) -> Job:
    """Return a plain one-node job with some fields changed."""
    job = Job(
        id=7,
        uid=64201,
        gid=64201,
        user="ws-alice",
        node="n1",
        cluster="test",
        partition="main",
        account="",
        nodelist="n1",
        het_id=None,
        constraints="",
        comment="",
        pyxis_image="",
    )
    return job._replace(**changes)  # type: ignore[arg-type]
