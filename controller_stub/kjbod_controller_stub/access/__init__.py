"""Who may ask what, and what administrators keep beside topics: ACLs, quotas, credentials."""
