"""Analysis: results of runs, whether they hold, comparisons, reports."""
