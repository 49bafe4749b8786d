"""Prometheus and Grafana beside a cluster: alert and recording rules, dashboards made from code."""
