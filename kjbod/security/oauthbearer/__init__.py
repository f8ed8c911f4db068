"""SASL OAUTHBEARER (RFC 7628) as Kafka 4.3.1 has it: KIP-255, KIP-342, KIP-768, KIP-1139.

Loaded where a login or a listener has it, and nowhere else: joserfc and an HTTP client take half a tenth of a second.
"""
