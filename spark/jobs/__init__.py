"""One file per job: parse, read, transform, write, print. Each runs under spark-submit and by ``python -m
spark``; what they share is in `spark.command`."""
