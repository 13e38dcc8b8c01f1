"""What things are: jobs, leases, endings, messages, exits, units. Pure data, no behaviour."""
