"""The demo prints each step of its runs once, in the order in which they ended."""

import dagster as dg

from lakeshare_pipelines.demo.processes import RUN_TAG, EndedSteps


@dg.op
def write_rows() -> int:
    return 1


@dg.op
def publish_rows(rows: int) -> None:
    raise dg.Failure(f"{rows} rows are wrong")


@dg.job
def publish() -> None:
    publish_rows(write_rows())


def test_each_ended_step_of_the_marked_run_is_returned_once():
    with dg.DagsterInstance.ephemeral() as instance:
        steps = EndedSteps(instance, "of this start")
        publish.execute_in_process(instance=instance, tags={RUN_TAG: "another"}, raise_on_error=False)
        assert list(steps.next()) == []

        publish.execute_in_process(instance=instance, tags={RUN_TAG: "of this start"}, raise_on_error=False)
        assert list(steps.next()) == ["write rows", "publish rows: stopped"]
        assert list(steps.next()) == []
