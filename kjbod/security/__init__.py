"""Secured connections: TLS and SASL from a ``server.properties`` or a ``--command-config`` file of Kafka, for clients
and listeners.

:mod:`kjbod.security.settings` reads the keys, :mod:`kjbod.security.stores` keystores and truststores,
:mod:`kjbod.security.contexts` makes TLS of them, and :mod:`kjbod.security.sasl` has the mechanisms as machines without
I/O. :mod:`kjbod.security.channel` is what a connection is given.
"""
