"""The hostile matrix: Delta tables with everything that makes reading them hard, judged by Spark.

`place.py` has what a builder works with and what a table is afterwards; one file per family of tables has the builders;
`matrix.py` makes all of them in one Spark process. Tests read the finished matrix and need no Spark.
"""
