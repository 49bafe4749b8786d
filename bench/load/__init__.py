"""Load: profiles, schedules, bodies, pacing, and the processes of ``bench load``."""
