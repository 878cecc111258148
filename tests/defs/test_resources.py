"""A run has a lake of its own, and the Spark it started is stopped when it ends, however it ends."""

import dagster as dg
import pytest

from lakeshare_pipelines.defs.wap import LakeResource, SparkResource
from lakeshare_pipelines.wap.staged import Lake


class Session:
    """A session, as far as a run's end is concerned; starting a real one takes seconds and proves no more."""

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_run_opened_is_stopped_at_its_end_and_the_next_run_begins_anew(fails):
    sessions: list[Session] = []
    lakes: list[Lake] = []

    @dg.op
    def work(lakeshare: LakeResource) -> None:
        assert lakeshare.spark._session is None
        sessions.append(Session())
        lakeshare.spark._session = sessions[-1]
        lakes.append(lakeshare.lake())
        assert lakeshare.lake().spark is sessions[-1]
        if fails:
            raise RuntimeError("the run fails")

    @dg.job
    def one_run() -> None:
        work()

    resources = {"lakeshare": LakeResource(spark=SparkResource())}
    for _ in range(2):
        ended = one_run.execute_in_process(resources=resources, raise_on_error=False)
        assert ended.success is not fails

    assert [session.is_stopped for session in sessions] == [True, True]
    assert lakes[0] is not lakes[1]
