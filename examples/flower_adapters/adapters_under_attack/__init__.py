"""A language model's adapters with Flower, some parties hostile, and nobody told who."""
