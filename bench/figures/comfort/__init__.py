"""What comfort costs: ids begin with ``comfort.``."""
