"""Recording of runs for the reports of ``spark/``: rows of publishes, deliveries and queues."""
