"""kjbod: KIP-858 (JBOD disk failure in KRaft) for real hosts."""

__version__ = "0.1.0"
