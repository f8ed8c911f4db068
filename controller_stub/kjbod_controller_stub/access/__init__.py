"""Permissions, and the other things that administrators keep beside topics: ACLs, quotas, credentials."""
