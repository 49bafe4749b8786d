"""Reports over recorded runs, made with PySpark. Run from the checkout: ``python -m spark --help``."""
