"""What validators check of a file format, one module per format; imported only where content is judged."""
