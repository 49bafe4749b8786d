"""Load as values: profiles, schedules, bodies, records, and the systems that can be measured."""
