"""MNIST with Flower, some parties hostile, and nobody told who."""
