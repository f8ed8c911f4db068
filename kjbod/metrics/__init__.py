"""Metrics in Prometheus text format: Kafka's MBeans under the names that dashboards know, and a listener for them."""
