"""The hostile matrix: Delta tables with everything that makes reading them hard, judged by Spark.

`place.py` has what a builder works with and what a table is afterwards; one file per family of tables has the builders;
`matrix.py` lets Spark write and read all of them and records the result. Tests read the record and need no Spark.
"""
