"""What Spark counts itself: jobs, and the rows that its stages read. Works with sessions in this process only."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Counts:
    """Jobs that began, and the records that their stages read; a cached batch of some thousand rows is one record."""

    jobs: int
    records: int


class SparkCounts:
    """Counts since it was made, or since the last `take`."""

    def __init__(self, session: SparkSession) -> None:
        self._context: Any = session.sparkContext._jsc.sc()
        self._doubles = session.sparkContext._gateway.new_array(session.sparkContext._jvm.double, 0)
        self._jobs: set[int] = set()
        self._stages: set[int] = set()
        self.take()

    def take(self) -> Counts:
        """The counts, after all events of Spark have arrived."""
        self._context.listenerBus().waitUntilEmpty()
        store = self._context.statusStore()
        jobs, stages = store.jobsList(None), store.stageList(None, False, False, self._doubles, None)
        new_jobs = {jobs.apply(at).jobId() for at in range(jobs.size())} - self._jobs
        new_stages = {}
        for at in range(stages.size()):
            stage = stages.apply(at)
            if stage.stageId() not in self._stages:
                new_stages[stage.stageId()] = int(stage.inputRecords())
        self._jobs |= new_jobs
        self._stages |= set(new_stages)
        return Counts(len(new_jobs), sum(new_stages.values()))
