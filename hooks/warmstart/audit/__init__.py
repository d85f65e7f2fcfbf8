"""What happened: the event catalogue, the journal, the sink, queries."""
