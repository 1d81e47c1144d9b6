"""Prometheus and Grafana configuration for lakehouse metrics: alert rules, a dashboard and a data source."""
