"""Spark: Java, the pinned jars, the session and its catalogs."""
