"""Permissions and access data: ACLs, quotas, credentials, delegation tokens."""
