"""A class of expectations as a user writes one: values that are multiples of a number."""

from typing import Any, ClassVar

from great_expectations.execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.expectations.metrics import ColumnMapMetricProvider, column_condition_partial


class ColumnValuesMultiple(ColumnMapMetricProvider):
    condition_metric_name = "column_values.multiple"
    condition_value_keys = ("factor",)

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column: Any, factor: int, **_: Any) -> Any:
        return column % factor == 0


class ExpectMultiples(ColumnMapExpectation):
    """Values are multiples of `factor`."""

    factor: int
    map_metric: ClassVar[str] = "column_values.multiple"
    success_keys: ClassVar[tuple[str, ...]] = ("factor", "mostly")
