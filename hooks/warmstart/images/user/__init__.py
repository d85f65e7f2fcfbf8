"""What a job's user does with images: imports of the user's own, notes of those of the store."""
