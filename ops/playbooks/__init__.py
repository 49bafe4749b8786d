"""The playbooks: functions that make plans from the inventory."""
