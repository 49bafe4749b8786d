"""The jobs, one file each: parse, read, transform, write, print.

Each runs under spark-submit and by ``python -m spark``; `spark.command` holds their common parts.
"""
