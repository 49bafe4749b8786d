"""One file per job: parse, read, transform, write, print. Each runs under spark-submit and "
"python -m."""
