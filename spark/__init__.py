"""Reports over recorded runs, made with PySpark. Run from the checkout: ``python -m spark --help``."""

from messagebus.commands.checkout import check_library

check_library("spark", "pyarrow")
