"""SASL OAUTHBEARER (RFC 7628) as in Kafka 4.3.1: KIP-255, KIP-342, KIP-768, KIP-1139.

Loaded only if a login or a listener uses OAUTHBEARER: joserfc and an HTTP client take 50 ms to import.
"""
