"""Configuration of Prometheus and Grafana for the metrics of lakehouse: alert rules, a dashboard, data source."""
